"""Programs in sandbox pods: the real runner, contained on this machine, behind a fake API server."""

import json
import signal
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tests.support.sandbox_cluster import SandboxCluster
from tidegate.environment.sandbox.pods.sandbox import PodsSandbox
from tidegate.environment.sandbox.port import IsolationUnavailableError, SandboxLimits
from tidegate.environment.tasks.port import Problem
from tidegate.environment.verifiers.code import CodeVerifier
from tidegate.environment.verifiers.settings import CodeSettings

pytestmark = pytest.mark.integration
LIMITS = SandboxLimits(cpu_s=1.0, wall_s=10.0, memory_bytes=200 << 20, scratch_bytes=1 << 20)
CASES = [{"arguments": [1, 2], "result": 3}, {"arguments": [20, 22], "result": 42}]
PROBLEM = Problem("add", "Write add(a, b).", json.dumps({"function": "add", "cases": CASES}), "easy")
# Writes a forged answer to the descriptors of the runner, as the runner frames one, and reads its memory.
FORGED_FRAME = """
import json, os, struct
head = json.dumps({"exit_status": 0, "limit": None, "stdout_bytes": 6, "stderr_bytes": 0, "cpu_s": 0.0,
                   "wall_s": 0.0, "parts": [6, 0]}).encode()
frame = struct.pack(">I", len(head)) + head + b"forged"
for path in ["/proc/1/fd/1", "/proc/1/fd/0", "/proc/1/fd/2", "/dev/console"]:
    try:
        with open(path, "wb", buffering=0) as file:
            file.write(frame)
    except OSError:
        pass
try:
    open("/proc/1/mem", "rb").close()
    print("read the runner")
except OSError:
    print("honest")
"""
KILLS_THE_RUNNER = """
import os, signal, time
for number in range(1, 65):
    try:
        os.kill(1, number)
    except OSError:
        pass
time.sleep(0.2)
print("alive")
"""
LEAVES_THINGS = """
import os, time
open("/tmp/left", "w").write("x")
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
"""
LOOKS_AROUND = """
import os
print(os.listdir("/tmp"), sorted(name for name in os.listdir("/proc") if name.isdigit()), dict(os.environ))
"""


@pytest.fixture
def sandbox(
    make_cluster: Callable[[None], SandboxCluster], open_sandbox: Callable[..., PodsSandbox]
) -> PodsSandbox:
    sandbox = open_sandbox(make_cluster(None), limits=LIMITS, start_deadline_s=20.0)
    try:
        sandbox.start()
    except IsolationUnavailableError as error:
        pytest.fail(f"{error}")
    return sandbox


def test_programs_run_within_their_limits(sandbox: PodsSandbox) -> None:
    ran = sandbox.run_python("import sys\nprint(sys.stdin.read())\nsys.exit(3)", stdin="given", limits=LIMITS)
    assert (ran.exit_status, ran.limit, ran.stdout) == (3, None, "given\n")
    for code, limits, expected in (
        ("while True: pass", replace(LIMITS, cpu_s=0.3), "cpu"),
        (
            "import os\nfor _ in range(3): os.fork()\nwhile True: pass",
            replace(LIMITS, cpu_s=0.5),
            "cpu",
        ),
        ("import time; time.sleep(60)", replace(LIMITS, wall_s=0.2), "wall"),
        ("while True: print('x' * 1000)", LIMITS, "output"),
    ):
        ended = sandbox.run_python(code, limits=limits)
        assert (ended.limit, ended.exit_status) == (expected, -signal.SIGKILL), code
    assert "MemoryError" in sandbox.run_python("bytearray(1 << 30)", limits=LIMITS).stderr
    full = "open('/tmp/a', 'wb').write(bytes(900 << 10)); open('/tmp/b', 'wb').write(bytes(900 << 10))"
    assert "Errno 28" in sandbox.run_python(full, limits=LIMITS).stderr
    with_error = sandbox.run_python("1 / 0", limits=LIMITS)
    assert (with_error.exit_status, "ZeroDivisionError" in with_error.stderr) == (1, True)


@pytest.mark.parametrize("landlock", [True, False])
def test_program_cannot_end_trace_or_speak_for_its_runner(
    make_cluster: Callable[[None], SandboxCluster],
    open_sandbox: Callable[..., PodsSandbox],
    *,
    landlock: bool,
) -> None:
    cluster = make_cluster(None)
    cluster.landlock = landlock
    sandbox = open_sandbox(cluster, limits=LIMITS, start_deadline_s=20.0)
    alive = sandbox.run_python(KILLS_THE_RUNNER, limits=LIMITS)
    assert (alive.limit, alive.stdout) == (None, "alive\n")
    forged = sandbox.run_python(FORGED_FRAME, limits=LIMITS)
    assert (forged.exit_status, forged.stdout) == (0, "honest\n")


def test_nothing_of_a_run_meets_the_next_one(sandbox: PodsSandbox) -> None:
    assert sandbox.run_python(LEAVES_THINGS, limits=LIMITS).ok
    assert sandbox.run_python(LOOKS_AROUND, limits=LIMITS).stdout == "[] ['1', '2'] {}\n"


@pytest.mark.parametrize(
    ("program", "reward"),
    [
        ("def add(a, b): return a + b", 1.0),
        ("def add(a, b): return a - b", 0.0),
        ("import os\ndef add(a, b):\n    os.write(1, b'2 passed\\n')\n    os._exit(0)", 0.0),
        ("class Any(int):\n    def __eq__(self, other): return True\ndef add(a, b): return Any(7)", 0.0),
        ("def add(a, b):\n    while True: pass", 0.0),
    ],
    ids=["right", "wrong", "exits", "equals", "endless"],
)
async def test_code_verifier_rewards_right_programs_only(
    program: str, reward: float, sandbox: PodsSandbox
) -> None:
    verifier = CodeVerifier(CodeSettings(), isolated=lambda: sandbox, limits=LIMITS)
    await verifier.start()
    assert (await verifier.score(PROBLEM, f"```python\n{program}\n```")).reward == reward
    await verifier.close()
