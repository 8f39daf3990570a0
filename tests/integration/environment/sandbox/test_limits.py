"""Programs that exceed their limits: each is ended or gets an error, and the worker continues."""

import pytest

from tidegate.environment.sandbox.linux import LinuxSandbox
from tidegate.environment.sandbox.port import SandboxLimits


def test_a_fork_bomb_stays_below_the_limit_and_is_killed(sandbox: LinuxSandbox) -> None:
    code = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
    result = sandbox.run_python(code, limits=SandboxLimits(processes=16, cpu_s=1, wall_s=60))
    assert result.limit == "cpu"


@pytest.mark.parametrize("kind", ["fork", "thread", "vfork"])
def test_program_can_use_processes_and_threads_up_to_the_limit(sandbox: LinuxSandbox, kind: str) -> None:
    code = f"""
import os, subprocess, sys, threading, time
made = 1
def fork():
    if os.fork() == 0:
        time.sleep(600)
make = dict(
    fork=fork,
    thread=lambda: threading.Thread(target=time.sleep, args=(600,), daemon=True).start(),
    vfork=lambda: subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]),
)[{kind!r}]
try:
    while True:
        make()
        made += 1
except (OSError, RuntimeError):
    print(made, flush=True)
os._exit(0)
"""
    assert sandbox.run_python(code, limits=SandboxLimits(processes=5, wall_s=60)).stdout == "5\n"


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import signal\nfor s in (signal.SIGXCPU, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
        "import os\nfor _ in range(3): os.fork()\nwhile True: pass",
        # Never long enough in one process for a limit on each of them.
        "import os, time\nwhile True:\n    if os.fork() == 0:\n        t = time.process_time()\n"
        "        while time.process_time() < t + 0.05: pass\n        os._exit(0)\n    os.wait()",
    ],
    ids=["one", "catching", "many", "short_lived"],
)
def test_cpu_time_is_that_of_all_processes_together(sandbox: LinuxSandbox, code: str) -> None:
    result = sandbox.run_python(code, limits=SandboxLimits(cpu_s=0.5, wall_s=60))
    assert (result.limit, result.exit_status) == ("cpu", -9)
    assert result.cpu_s >= 0.5


def test_cpu_time_of_children_that_are_not_waited_for_counts(sandbox: LinuxSandbox) -> None:
    # Ignoring SIGCHLD makes the kernel forget what ended children have used.
    code = """
import os, signal, time
try:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
except OSError:
    pass
while True:
    child = os.fork()
    if child == 0:
        end = time.process_time() + 0.012
        while time.process_time() < end: pass
        os._exit(0)
    try:
        os.waitid(os.P_PID, child, os.WEXITED)
    except ChildProcessError:
        pass
"""
    result = sandbox.run_python(code, limits=SandboxLimits(cpu_s=0.5, wall_s=60))
    assert (result.limit, result.exit_status) == ("cpu", -9)
    assert result.cpu_s >= 0.5


def test_program_that_starts_others_works_with_the_default_of_sigchld(sandbox: LinuxSandbox) -> None:
    code = """
import asyncio, signal, subprocess, sys
async def child():
    process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "raise SystemExit(3)")
    return await process.wait()
print(asyncio.run(child()), subprocess.run([sys.executable, "-S", "-c", "raise SystemExit(4)"]).returncode)
print(signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL)
"""
    # Two interpreters and asyncio: on a loaded machine several seconds.
    limits = SandboxLimits(cpu_s=60, wall_s=120)
    assert sandbox.run_python(code, limits=limits).stdout == "3 4\nTrue\n"


@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(600)",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nsignal.pause()",
        "import os\nos.closerange(0, 3)\nimport time; time.sleep(600)",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    ],
    ids=["sleeping", "blocking_signals", "without_descriptors", "stopped"],
)
def test_program_past_its_deadline_is_killed(sandbox: LinuxSandbox, code: str) -> None:
    result = sandbox.run_python(code, limits=SandboxLimits(wall_s=0.3))
    assert (result.limit, result.exit_status) == ("wall", -9)
    assert result.wall_s >= 0.3


def test_a_memory_bomb_gets_an_error_not_the_memory(sandbox: LinuxSandbox) -> None:
    result = sandbox.run_python("x = bytearray(1 << 30)", limits=SandboxLimits(memory_bytes=128 << 20))
    assert result.exit_status == 1
    assert "MemoryError" in result.stderr


@pytest.mark.parametrize("held", ["bytearray", "mapped"])
def test_memory_is_that_of_all_processes_together(sandbox: LinuxSandbox, held: str) -> None:
    code = f"""
import mmap, os, time
for _ in range(5):
    if os.fork() == 0:
        break
if {held!r} == "bytearray":
    data = bytearray(b"x") * (60 << 20)
else:
    data = mmap.mmap(-1, 60 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    data.write(b"x" * (60 << 20))
time.sleep(600)
"""
    assert sandbox.run_python(code, limits=SandboxLimits(memory_bytes=200 << 20, wall_s=60)).limit == "memory"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_an_output_flood_is_cut_and_ended(sandbox: LinuxSandbox, stream: str) -> None:
    code = f"import sys\nwhile True: sys.{stream}.write('x' * 1000)"
    result = sandbox.run_python(code, limits=SandboxLimits(output_bytes=5000))
    assert (result.limit, result.truncated) == ("output", True)
    assert getattr(result, stream) == "x" * 5000
    assert 5000 < getattr(result, f"{stream}_bytes") <= 5000 + (1 << 16)


def test_output_after_the_last_sample_is_counted(sandbox: LinuxSandbox) -> None:
    result = sandbox.run_python("print('x' * 9999, end='')", limits=SandboxLimits(output_bytes=100))
    assert (result.limit, result.stdout, result.stdout_bytes) == ("output", "x" * 100, 9999)


def test_output_that_is_no_text_is_replaced(sandbox: LinuxSandbox) -> None:
    result = sandbox.run_python("import os; os.write(1, bytes([0xff, 0x41]))")
    assert (result.stdout, result.stdout_bytes) == ("\ufffdA", 2)


@pytest.mark.parametrize("by", ["write", "holes", "fallocate"])
def test_a_full_scratch_is_an_error_of_the_program(sandbox: LinuxSandbox, by: str) -> None:
    code = f"""
import errno, os
size = 0
try:
    for number in range(100):
        with open(f"/tmp/{{number}}", "wb", buffering=0) as file:
            if {by!r} == "fallocate":
                os.posix_fallocate(file.fileno(), 0, 1 << 20)
            else:
                file.seek((1 << 20) - (1 << 16) if {by!r} == "holes" else 0)
                for _ in range(16 if {by!r} == "write" else 1):
                    file.write(bytes(1 << 16))
            size += os.fstat(file.fileno()).st_blocks * 512
except OSError as error:
    print(error.errno == errno.ENOSPC, size <= 2 << 20)
"""
    assert sandbox.run_python(code, limits=SandboxLimits(scratch_bytes=2 << 20)).stdout == "True True\n"


@pytest.mark.parametrize("kind", ["file", "folder", "symlink", "hardlink"])
def test_scratch_holds_files_up_to_the_limit(sandbox: LinuxSandbox, kind: str) -> None:
    code = f"""
import os
open("/tmp/0", "w").close()
made = 1
make = dict(
    file=lambda path: open(path, "w").close(), folder=os.mkdir, symlink=lambda path: os.symlink("0", path),
    hardlink=lambda path: os.link("/tmp/0", path),
)[{kind!r}]
try:
    while True:
        make(f"/tmp/{{made}}")
        made += 1
except OSError:
    print(made)
"""
    assert sandbox.run_python(code, limits=SandboxLimits(files=20)).stdout == "20\n"
