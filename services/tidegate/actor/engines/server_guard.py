"""The process between an actor and its inference server: ends the server with all of its processes when either ends.

A server is several processes, and some of them outlive the first one: killed outright it leaves an engine behind, with
all of its memory. All of them are asked before they are killed: what they share (vLLM: 400 MB in ``/dev/shm``) is given
back by those that end by themselves, and by nobody after a kill.

As a program (``python -m tidegate.actor.engines.server_guard ACTOR_PID PROGRAM ARGUMENTS``) this one starts PROGRAM in
a group of its own, which is gone before this exits, with PROGRAM's exit code if it ended by itself. Standard library
only: it is there for as long as the server is. Linux ends it with its actor; elsewhere an actor that is killed outright
leaves its server behind.
"""

import os
import signal
import subprocess
import sys
import time
from types import FrameType

from tidegate.runtime.parent_death import guard

# For all processes together, from being asked to being killed.
GRACE_S = 5.0
POLL_S = 0.02


def main(arguments: list[str]) -> int:
    """Run the server to its end, or to the actor's."""
    actor, command = int(arguments[0]), arguments[1:]
    signal.signal(signal.SIGTERM, _stop)
    if not guard(actor, signal.SIGTERM):
        return 1
    server = subprocess.Popen(command, start_new_session=True)
    try:
        return server.wait()
    except SystemExit:
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it ends as fast as it can
        _end_group(server)


def _stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise SystemExit


def _end_group(server: "subprocess.Popen[bytes]") -> None:
    """Ask every process that is left of the server, then kill."""
    until_s = time.monotonic() + GRACE_S
    is_left = _signal_group(server.pid, signal.SIGTERM)
    while is_left and time.monotonic() < until_s:
        time.sleep(POLL_S)
        server.poll()  # who was waited for is of no group any more
        is_left = _signal_group(server.pid, 0)
    if is_left:
        _signal_group(server.pid, signal.SIGKILL)


def _signal_group(group: int, number: int) -> bool:
    """Whether there was anybody to be signalled."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
