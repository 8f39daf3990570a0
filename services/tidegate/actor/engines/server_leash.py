"""Stands between an actor and its inference server: ends the server with all of its processes when either ends.

A server is several processes, and some of them outlive the first one: killed outright it leaves an engine behind, with
all of its memory. As a program (``python -m tidegate.actor.engines.server_leash ACTOR_PID PROGRAM ARGUMENTS``) this one
starts PROGRAM in a group of its own, which is gone before this exits, with PROGRAM's exit code. Standard library only:
it is there for as long as the server is. Linux ends it with its actor; elsewhere an actor that is killed outright
leaves its server behind.
"""

import ctypes
import os
import signal
import subprocess
import sys
from types import FrameType

GRACE_S = 5.0
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Run the server to its end, or to the actor's."""
    actor, command = int(arguments[0]), arguments[1:]
    signal.signal(signal.SIGTERM, _stop)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != actor:  # it died before the kernel knew
        return 1
    server = subprocess.Popen(command, start_new_session=True)
    try:
        return server.wait()
    except SystemExit:
        _signal_group(server.pid, signal.SIGTERM)
        try:
            return server.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return 1
    finally:
        _signal_group(server.pid, signal.SIGKILL)


def _stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise SystemExit


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
