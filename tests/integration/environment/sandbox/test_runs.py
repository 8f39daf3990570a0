"""What a program in the sandbox gets, and the report of its end."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tidegate.core.errors import RecordError, UnavailableError
from tidegate.environment.sandbox.linux import LinuxSandbox
from tidegate.environment.sandbox.port import CODE_BYTES_MAX, IsolationUnavailableError, SandboxLimits


def test_a_program_reads_its_input_and_its_output_is_kept_apart(sandbox: LinuxSandbox) -> None:
    result = sandbox.run_python(
        "import sys\nprint(sum(map(int, sys.stdin)))\nprint('é', file=sys.stderr)", stdin="1\n2\n39\n"
    )
    assert (result.ok, result.exit_status, result.limit) == (True, 0, None)
    assert (result.stdout, result.stdout_bytes) == ("42\n", 3)
    assert (result.stderr, result.stderr_bytes) == ("é\n", 3)
    assert 0 < result.cpu_s < SandboxLimits().cpu_s
    assert 0 < result.wall_s < SandboxLimits().wall_s


def test_error_is_shown_as_the_program_s_traceback(sandbox: LinuxSandbox) -> None:
    result = sandbox.run_python("def half(x):\n    return x / 0\n\nhalf(1)")
    assert (result.ok, result.exit_status, result.limit) == (False, 1, None)
    assert result.stderr.startswith(
        'Traceback (most recent call last):\n  File "main.py", line 4, in <module>\n'
    )
    assert "    return x / 0" in result.stderr
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit('no')", 1),
        ("import os; os._exit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("x =", 1),
    ],
)
def test_the_exit_status_is_the_interpreter_s(sandbox: LinuxSandbox, code: str, status: int) -> None:
    result = sandbox.run_python(code)
    assert (result.exit_status, result.limit) == (status, None)


def test_exit_handlers_of_a_program_run(sandbox: LinuxSandbox) -> None:
    code = """
import atexit, threading, time
atexit.register(print, "last")
def later():
    time.sleep(0.05)
    print("thread")
threading.Thread(target=later).start()
"""
    assert sandbox.run_python(code).stdout == "thread\nlast\n"


def test_programs_have_the_standard_library_scratch_and_children(sandbox: LinuxSandbox) -> None:
    code = """
import asyncio, bz2, ctypes, decimal, hashlib, lzma, sqlite3, ssl, subprocess, sys, tempfile, zlib
with tempfile.NamedTemporaryFile("w+") as file:
    file.write("kept")
    file.seek(0)
    print(file.read())
database = sqlite3.connect("x.db")
database.execute("create table t (a)")
print(subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True, check=True).stdout)
async def answer():
    return await asyncio.to_thread(lambda: "async")
print(asyncio.run(answer()))
"""
    # Its imports take half a second of CPU time: on a loaded machine several seconds.
    result = sandbox.run_python(code, limits=SandboxLimits(cpu_s=60, wall_s=120))
    assert result.stdout.split() == ["kept", "42", "async"], result.stderr


def test_programs_run_concurrently_up_to_the_limit(sandbox: LinuxSandbox) -> None:
    def run(number: int) -> str:
        return sandbox.run_python(f"print({number} ** 2)").stdout

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(run, range(24)))
    assert results == [f"{n * n}\n" for n in range(24)]


def test_a_program_that_is_run_again_prints_the_same(sandbox: LinuxSandbox) -> None:
    """Sets of texts keep their order, so an episode that is replayed elsewhere reads the same replies."""
    code = "print({'a', 'b', 'c', 'd', 'e', 'f'})"
    other = LinuxSandbox()
    try:
        assert other.run_python(code).stdout == sandbox.run_python(code).stdout
    finally:
        other.close()


def test_oversized_or_undecodable_input_is_refused_before_the_run(sandbox: LinuxSandbox) -> None:
    with pytest.raises(RecordError, match="code has"):
        sandbox.run_python("#" * (CODE_BYTES_MAX + 1))
    with pytest.raises(RecordError, match="UTF-8"):
        sandbox.run_python("print('\ud800')")


def test_killed_zygote_ends_its_runs_and_is_replaced(sandbox: LinuxSandbox) -> None:
    del sandbox  # where it is refused there is nothing to kill
    other = LinuxSandbox()
    try:
        other.start()
        before = {process.pid for process in psutil.Process().children()}
        zygote = max(psutil.Process().children(), key=lambda process: process.create_time())
        with ThreadPoolExecutor(1) as threads:
            lost = threads.submit(
                other.run_python, "import time; time.sleep(600)", limits=SandboxLimits(wall_s=100)
            )
            while len(started := zygote.children(recursive=True)) < 3:
                assert not lost.done()
            zygote.kill()
            with pytest.raises(UnavailableError):
                lost.result()
        assert not psutil.wait_procs(started, timeout=10)[1]
        assert other.run_python("print(1)").stdout == "1\n"
        assert {process.pid for process in psutil.Process().children()} - before
    finally:
        other.close()


def test_close_ends_what_runs(sandbox: LinuxSandbox) -> None:
    del sandbox
    other = LinuxSandbox()
    other.start()
    failed = threading.Event()

    def run() -> None:
        with pytest.raises(UnavailableError):
            other.run_python("import time; time.sleep(600)", limits=SandboxLimits(wall_s=100))
        failed.set()

    thread = threading.Thread(target=run)
    thread.start()
    zygote = max(psutil.Process().children(), key=lambda process: process.create_time())
    while len(started := zygote.children(recursive=True)) < 3:
        assert thread.is_alive()
    other.close()
    thread.join()
    assert failed.is_set()
    assert not psutil.wait_procs(started, timeout=10)[1]
    with pytest.raises(UnavailableError, match="closed"):
        other.run_python("print(1)")


async def test_event_loop_runs_while_a_program_runs_in_a_thread(sandbox: LinuxSandbox) -> None:
    async with asyncio.timeout(60):
        answers = await asyncio.gather(
            *(asyncio.to_thread(sandbox.run_python, f"print({n})") for n in range(3))
        )
    assert [answer.stdout for answer in answers] == ["0\n", "1\n", "2\n"]


_REFUSING = """
import ctypes, struct, sys
from tidegate.environment.sandbox.zygote import kernel
from tidegate.environment.sandbox.linux import LinuxSandbox
from tidegate.environment.sandbox.port import IsolationUnavailableError

# What a pod's default profile does: {call} fails with EPERM, all else is allowed.
lines = [(0x20, 0, 0, 0), (0x15, 0, 1, {number}), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
packed = b"".join(struct.pack("=HBBI", *line) for line in lines)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
kernel.prctl_filter(2, ctypes.byref(Program(len(lines), packed)))
sandbox = LinuxSandbox()
for _ in range(2):
    try:
        sandbox.run_python("open('/etc/passwd').read()")
    except IsolationUnavailableError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("call", "x86_64", "aarch64"),
    [
        ("unshare", 272, 97),
        ("mount", 165, 40),
        ("seccomp filters", 157, 167),
        ("landlock_restrict_self", 446, 446),
    ],
)
def test_missing_isolation_is_refused_and_no_program_runs(
    sandbox: LinuxSandbox, call: str, x86_64: int, aarch64: int
) -> None:
    del sandbox
    number = x86_64 if os.uname().machine == "x86_64" else aarch64
    answer = subprocess.run(
        [sys.executable, "-c", _REFUSING.format(call=call, number=number)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = answer.stdout.strip().splitlines()
    assert len(lines) == 2, answer.stderr
    for line in lines:
        assert "cannot be isolated" in line
        assert "docs/sandbox.md" in line


_AS_ANOTHER_USER = """
import os, sys
{become}
from tidegate.environment.sandbox.linux import LinuxSandbox
from tidegate.environment.sandbox.port import IsolationUnavailableError
try:
    print(LinuxSandbox().run_python("import os; print(os.getuid(), os.listdir('/tmp'))").stdout)
except IsolationUnavailableError as error:
    print(error)
"""


def _output_of(code: str) -> str:
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


@pytest.mark.skipif(os.getuid() != 0, reason="every other test runs as an unprivileged user already")
def test_a_user_without_privileges_has_the_same_sandbox(sandbox: LinuxSandbox) -> None:
    del sandbox
    system = "/usr/bin/python3"  # one that other users may execute, unlike one in root's home
    version = "import sys; sys.exit(sys.version_info < (3, 11))"
    if not os.path.exists(system) or subprocess.run([system, "-c", version], check=False).returncode:
        pytest.skip("there is no interpreter that every user may execute")
    become = "import tidegate.environment.sandbox.linux\nos.setgroups([])\nos.setresgid(*[65533] * 3)\n"
    become += f"os.setresuid(*[65533] * 3)\nsys.executable = {system!r}"
    assert _output_of(_AS_ANOTHER_USER.format(become=become)) == "65534 []"


def test_files_that_a_worker_keeps_private_do_not_hide_the_sandbox_s_tree(sandbox: LinuxSandbox) -> None:
    """Services of ``tidegate up`` run with the umask 077."""
    del sandbox
    private = "import tidegate.environment.sandbox.linux\nos.umask(0o077)"
    assert _output_of(_AS_ANOTHER_USER.format(become=private)) == "65534 []"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user's root")
def test_self_test_detects_a_sandbox_without_a_process_limit(
    sandbox: LinuxSandbox,
) -> None:
    """The kernel counts no processes of the machine's root, under any uid of a user namespace."""
    del sandbox
    become = """
from tidegate.environment.sandbox.zygote import kernel
kernel.unshare(kernel.CLONE_NEWUSER)
for name, text in (("setgroups", "deny"), ("uid_map", "1000 0 1"), ("gid_map", "1000 0 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
"""
    output = _output_of(_AS_ANOTHER_USER.format(become=become))
    assert "cannot be isolated" in output
    assert "processes" in output


def test_the_error_travels_as_a_failed_precondition() -> None:
    error = IsolationUnavailableError("x")
    assert (error.status, error.retryable) == ("FAILED_PRECONDITION", False)
