"""The self-test at the start: programs that try to break out of the sandbox."""

import json
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from tidegate.environment.sandbox.port import SandboxLimits, SandboxResult
from tidegate.environment.sandbox.unavailable import LINUX_FIX, isolation_unavailable

# For the probe: enough for a few children, whose memory counts together.
MEMORY_BYTES = 256 << 20
# Scratch that the probe fills.
SCRATCH_BYTES = 1 << 20
_GROWN_BYTES = 128 << 20
_PROCESSES = 4

# Prints the breaches found, as JSON. Everything it tries must fail.
_PROBE = """
import ctypes, json, os, socket, sys
outside = json.loads({outside!r})
breaches = []

def must_fail(name, act):
    try:
        act()
    except (OSError, MemoryError):
        return
    breaches.append(name)

for path in outside:
    must_fail("read " + path, lambda: os.stat(path))
for path in ("/x", "/dev/x", "/dev/shm/x", os.path.join(os.path.dirname(os.__file__), "x")):
    must_fail("write " + path, lambda: open(path, "w"))
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):
    must_fail("socket", lambda: socket.socket(family, socket.SOCK_DGRAM))
libc = ctypes.CDLL(None)
for name, arguments in (
    ("unshare", (0x10000000,)),
    ("ptrace", (16, 1, None, None)),
    ("mount", (b"none", b"/tmp", b"tmpfs", 0, None)),
    ("setuid", (0,)),
    ("memfd_create", (b"x", 0)),
):
    if getattr(libc, name)(*arguments) != -1:
        breaches.append(name)
if os.getuid() == 0 or os.getppid() != 1:
    breaches.append("user or pid namespace")
if os.environ:
    breaches.append("environment")
for descriptor in range(3, 256):
    must_fail("descriptor", lambda: os.fstat(descriptor))
must_fail("memory", lambda: bytearray({memory_bytes}))
def fill():
    with open("/tmp/full", "wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass
must_fail("disk", fill)
os.unlink("/tmp/full")
num_forked = 0
hold, release = os.pipe()
try:
    while num_forked < {processes} + 2:
        if os.fork() == 0:
            os.close(release)
            os.read(hold, 1)
            os._exit(0)
        num_forked += 1
except OSError:
    pass
os.close(release)
if num_forked >= {processes}:
    breaches.append("processes")
sys.stdout.write(json.dumps(breaches))
"""

_OUTLIVE = """
import os, time
if os.fork() == 0:
    os.setsid()
time.sleep(600)
"""

_GROW = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        break
data = b"x" * (50 << 20)
time.sleep(600)
"""


def break_out(
    run: Callable[[str, SandboxLimits], SandboxResult], *, outside: Sequence[str], fix: str = LINUX_FIX
) -> None:
    """Run the self-test.

    ``outside``: files that no program may see. ``fix``: what an operator does where a program broke out.

    Raises:
        IsolationUnavailableError: a program broke out, or a run failed otherwise; the error names it.
    """
    probe = _PROBE.format(outside=json.dumps(list(outside)), memory_bytes=MEMORY_BYTES, processes=_PROCESSES)
    small = SandboxLimits(memory_bytes=MEMORY_BYTES, processes=_PROCESSES, scratch_bytes=SCRATCH_BYTES)
    result = run(probe, small)
    if not result.ok:
        ended = f"limit {result.limit}" if result.limit else f"status {result.exit_status}"
        raise isolation_unavailable(f"the self-test ended with {ended}: {result.stderr[-500:]}", fix=fix)
    breaches = _breaches(result)
    if breaches:
        raise isolation_unavailable(f"a program got past: {', '.join(breaches)}", fix=fix)
    for code, limits, expected in (
        (_OUTLIVE, replace(small, wall_s=0.1), "wall"),
        (_GROW, replace(small, memory_bytes=_GROWN_BYTES), "memory"),
    ):
        result = run(code, limits)
        if result.limit != expected:
            raise isolation_unavailable(f"a program exceeded its limit of {expected}", fix=fix)


def _breaches(result: SandboxResult) -> list[str]:
    try:
        return msgspec.json.decode(result.stdout, type=list[str])
    except msgspec.DecodeError:
        return ["its own test, whose result cannot be read"]
