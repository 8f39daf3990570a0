"""Programs that try to escape, to exceed their limits, or to do harm. Each fails, and the worker continues."""

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tidegate.environment.sandbox.linux import LinuxSandbox
from tidegate.environment.sandbox.port import SandboxResult

# Prints "refused" for an attempt that a system call refuses, and its result otherwise.
_TRY = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(act):
    try:
        got = act()
    except OSError as error:
        print("refused")
    else:
        print("got", got)
def call(name, *arguments):
    result = getattr(libc, name)(*arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result
"""


def assert_all_refused(result: SandboxResult) -> None:
    assert result.exit_status == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines
    assert set(lines) == {"refused"}, result.stdout


# Processes


def test_daemons_end_with_the_run(sandbox: LinuxSandbox) -> None:
    code = """
import os, signal, sys, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        if os.fork():
            os._exit(0)
        time.sleep(600)
print("done")
"""
    result = sandbox.run_python(code)
    assert (result.stdout, result.limit) == ("done\n", None)


def test_killing_the_parent_its_group_or_all_processes_has_no_effect_outside(sandbox: LinuxSandbox) -> None:
    code = """
import os, signal
for target in (1, os.getppid(), -1):
    try:
        os.kill(target, signal.SIGKILL)
    except OSError:
        pass
for process in range(3, 400):
    try:
        os.kill(process, signal.SIGKILL)
        print("killed", process)
    except OSError:
        pass
print("alone", flush=True)
os.killpg(0, signal.SIGKILL)
"""
    result = sandbox.run_python(code)
    assert (result.stdout, result.exit_status, result.limit) == ("alone\n", -9, None)


# Files


def test_no_file_of_the_machine_is_visible(sandbox: LinuxSandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    paths = [
        "/etc/passwd",
        "/proc/1/environ",
        "/proc/self/mem",
        "/sys/kernel",
        "/home",
        str(secret),
        __file__,
    ]
    paths += [f"/proc/{os.getpid()}/fd", "/dev/mem", "/dev/kmsg", "/dev/tty", "/dev/shm", "/run", "/var"]
    code = _TRY + f"for path in {paths!r}: attempt(lambda: os.stat(path))\n"
    assert_all_refused(sandbox.run_python(code))


def test_installed_packages_and_the_platform_cannot_be_imported(sandbox: LinuxSandbox) -> None:
    code = """
for name in ("numpy", "msgspec", "pip", "tidegate.core.errors", "tidegate.environment.sandbox.linux"):
    try:
        __import__(name)
    except ImportError:
        print("refused")
"""
    assert_all_refused(sandbox.run_python(code))


def test_nothing_but_scratch_is_written(sandbox: LinuxSandbox) -> None:
    code = (
        _TRY
        + """
library = os.path.dirname(os.__file__)
for path in ("/x", "/dev/x", "/dev/../x", library + "/x", library + "/os.py", sys.executable, "/lib/x"):
    attempt(lambda: open(path, "wb"))
    attempt(lambda: os.mkdir(path + ".d"))
attempt(lambda: os.unlink(library + "/os.py"))
attempt(lambda: os.chmod(library + "/os.py", 0o777))
attempt(lambda: os.utime(library + "/os.py"))
attempt(lambda: os.rename("/tmp", "/dev/tmp"))
attempt(lambda: os.rmdir("/dev"))
attempt(lambda: os.truncate(library + "/os.py", 0))
"""
    )
    assert_all_refused(sandbox.run_python(code))


def test_links_lead_nowhere(sandbox: LinuxSandbox) -> None:
    code = (
        _TRY
        + """
os.symlink("/etc/passwd", "/tmp/a")
os.symlink("../../../../../../etc/passwd", "/tmp/b")
os.symlink("/proc/self/root", "/tmp/c")
os.symlink("/x", "/tmp/d")
for path in ("/tmp/a", "/tmp/b", "/tmp/c/etc", "/../../etc/passwd"):
    attempt(lambda: open(path))
attempt(lambda: open("/tmp/d", "w"))
attempt(lambda: os.link(os.__file__, "/tmp/e"))
attempt(lambda: os.chroot("/tmp"))
attempt(lambda: os.mknod("/tmp/f", 0o60600, os.makedev(254, 0)))
attempt(lambda: os.mknod("/tmp/g", 0o20600, os.makedev(1, 1)))
"""
    )
    assert_all_refused(sandbox.run_python(code))


def test_scratch_is_of_one_run(sandbox: LinuxSandbox) -> None:
    code = "import os, time\nopen(f'/tmp/{}', 'w').close()\ntime.sleep(0.2)\nprint(os.listdir('/tmp'))"

    def run(number: int) -> str:
        return sandbox.run_python(code.format(number)).stdout

    with ThreadPoolExecutor(4) as threads:
        seen = list(threads.map(run, range(8)))
    assert seen == [f"['{n}']\n" for n in range(8)]


# What is inherited


def test_neither_environment_nor_descriptors_are_inherited(
    sandbox: LinuxSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_SECRET", "x")
    inherited = os.open("/etc/passwd", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    fresh = LinuxSandbox()  # its zygote is made with both of them at hand
    code = """
import os
found = []
for number in range(1024):
    try:
        os.fstat(number)
        found.append(number)
    except OSError:
        pass
import ctypes
environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
print(found, dict(os.environ), bool(environ) and environ[0])
"""
    try:
        for each in (sandbox, fresh):
            assert each.run_python(code).stdout == "[0, 1, 2] {} None\n"
    finally:
        fresh.close()
        os.close(inherited)


def test_the_memory_of_the_program_s_process_holds_nothing_of_the_worker(
    sandbox: LinuxSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    del sandbox
    monkeypatch.setenv("TIDEGATE_SECRET", "in-the-environment")
    fresh = LinuxSandbox()
    code = """
import gc
print(any("in-the-environment" in value for value in gc.get_objects() if isinstance(value, str)))
import ctypes
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
print(libc.getenv(b"TIDEGATE_SECRET"), libc.getenv(b"PYTHONHASHSEED"))
"""
    try:
        assert fresh.run_python(code).stdout == "False\nNone None\n"
    finally:
        fresh.close()


# The network


def test_there_is_no_network(sandbox: LinuxSandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        port: int = server.getsockname()[1]
        name = f"\0tidegate-test-{os.getpid()}"
        abstract.bind(name)
        abstract.listen()
        code = (
            _TRY
            + f"""
attempt(lambda: socket.create_connection(("127.0.0.1", {port}), 2))
attempt(lambda: socket.create_connection(("::1", {port}), 2))
attempt(lambda: socket.create_connection(("192.0.2.1", 80), 2))
attempt(lambda: socket.getaddrinfo("example.invalid", 80))
for family in range(46):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        attempt(lambda: socket.socket(family, kind))
def abstract():
    unix = socket.socket(socket.AF_UNIX)
    unix.connect({name!r})
attempt(abstract)
attempt(lambda: socket.socketpair(socket.AF_INET))
pair, _ = socket.socketpair()
attempt(lambda: pair.connect({name!r}))
attempt(lambda: pair.bind("/tmp/socket"))
attempt(lambda: socket.send_fds(pair, [b"x"], [0]))
"""
        )
        assert_all_refused(sandbox.run_python(code))


# The kernel


def test_privileges_cannot_be_gained(sandbox: LinuxSandbox) -> None:
    code = (
        _TRY
        + """
for act in (
    lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.setresuid(0, 0, 0),
    lambda: os.nice(-1), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
    lambda: os.sched_setaffinity(0, {0}),
    lambda: call("sethostname", b"x", 1), lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None),
    lambda: call("umount2", b"/tmp", 2), lambda: call("swapoff", b"/x"), lambda: call("reboot", 0),
    lambda: call("ptrace", 16, 1, None, None), lambda: call("ptrace", 0, 0, None, None),
    lambda: call("setns", 0, 0), lambda: call("unshare", 0x10000000), lambda: call("unshare", 0x20000),
    lambda: call("personality", 0x40000), lambda: call("acct", None), lambda: call("clock_settime", 0, bytes(16)),
    lambda: call("prctl", 4, 1, 0, 0, 0), lambda: call("prctl", 22, 2, 0, 0, 0), lambda: call("sync_file_range"),
    lambda: call("process_vm_readv", 1, None, 0, None, 0, 0), lambda: call("syncfs", 0),
    lambda: call("inotify_init"), lambda: call("fanotify_init", 0, 0), lambda: call("vmsplice", 1, None, 0, 0),
    lambda: call("setxattr", b"/tmp", b"user.x", b"x", 1, 0), lambda: call("mq_open", b"/x", 0o102, 0o600, None),
    lambda: call("ioctl", 0, 0x5412, b"x"),
):
    attempt(act)
"""
    )
    assert_all_refused(sandbox.run_python(code))


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are this architecture's")
def test_system_calls_made_directly_are_refused(sandbox: LinuxSandbox) -> None:
    numbers = {
        "socket": 41, "connect": 42, "unshare": 272, "clone3": 435, "setns": 308, "bpf": 321, "ptrace": 101,
        "userfaultfd": 323, "io_uring_setup": 425, "keyctl": 250, "add_key": 248, "perf_event_open": 298,
        "open_by_handle_at": 304, "name_to_handle_at": 303, "kexec_load": 246, "init_module": 175,
        "pidfd_open": 434, "pidfd_getfd": 438, "pidfd_send_signal": 424, "open_tree": 428, "move_mount": 429,
        "fsopen": 430, "mount_setattr": 442, "landlock_create_ruleset": 444, "seccomp": 317, "openat2": 437,
        "process_madvise": 440, "modify_ldt": 154, "iopl": 172, "quotactl": 179, "kcmp": 312, "later": 600,
    }  # fmt: skip
    code = (
        _TRY
        + f"""
import errno
for number in {list(numbers.values())}:
    attempt(lambda: call("syscall", ctypes.c_long(number), *[ctypes.c_long(0)] * 5))
for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000, 0x80):
    attempt(lambda: call("syscall", ctypes.c_long(56), ctypes.c_long(flag | 17), *[ctypes.c_long(0)] * 4))
attempt(lambda: call("syscall", ctypes.c_long(302), ctypes.c_long(1), *[ctypes.c_long(7)] * 3))
"""
    )
    assert_all_refused(sandbox.run_python(code))


@pytest.mark.skipif(
    os.uname().machine != "x86_64", reason="other architectures have no second set of numbers"
)
def test_the_other_set_of_system_call_numbers_ends_the_program(sandbox: LinuxSandbox) -> None:
    code = "import ctypes\nctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 + 41), 2, 1, 0)\nprint('alive')"
    result = sandbox.run_python(code)
    assert (result.stdout, result.exit_status) == ("", -31)  # SIGSYS


def test_memory_outside_of_process_accounting_is_refused(sandbox: LinuxSandbox) -> None:
    code = (
        _TRY
        + """
import mmap
attempt(lambda: mmap.mmap(-1, 1 << 20))  # shared, without a file
attempt(lambda: mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000))  # huge pages
attempt(lambda: os.memfd_create("x"))
attempt(lambda: call("shmget", 0, 1 << 20, 0o1600))
attempt(lambda: call("syscall", 447, 0))  # memfd_secret
attempt(lambda: call("mlockall", 3))
"""
    )
    assert_all_refused(sandbox.run_python(code))


def test_limits_cannot_be_raised(sandbox: LinuxSandbox) -> None:
    code = """
import resource
for kind in (resource.RLIMIT_AS, resource.RLIMIT_NPROC, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE):
    soft, hard = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (hard + 1, hard + 1))
    except (OSError, ValueError):
        print("refused")
"""
    assert_all_refused(sandbox.run_python(code))


def test_a_worker_that_is_killed_leaves_nothing_behind(sandbox: LinuxSandbox) -> None:
    del sandbox
    code = """
from tidegate.environment.sandbox.linux import LinuxSandbox
sandbox = LinuxSandbox()
sandbox.start()
print(flush=True)
sandbox.run_python("while True: pass")
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        # The zygote, the monitor, the run's first process, the program.
        while len(started := psutil.Process(worker.pid).children(recursive=True)) < 4:
            assert worker.poll() is None
        worker.kill()
    assert not psutil.wait_procs(started, timeout=10)[1]
