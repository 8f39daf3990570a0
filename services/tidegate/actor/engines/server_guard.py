"""The process between an actor and its inference server: ends the server with all of its processes when either ends.

A server is several processes, and some outlive the first one: SIGKILL to the first leaves an engine process with all of
its memory. The guard sends SIGTERM to all of them before SIGKILL, because shared memory (vLLM: 400 MB in ``/dev/shm``)
is freed only by processes that end by themselves.

The program (``python -m tidegate.actor.engines.server_guard ACTOR_PID PROGRAM ARGUMENTS``) starts PROGRAM in a new
process group, ends the whole group before it exits, and returns PROGRAM's exit code if PROGRAM ended by itself. It
imports the standard library only, because it runs as long as the server. Linux ends the guard with its actor; on other
systems an actor that gets SIGKILL leaves its server running.
"""

import os
import signal
import subprocess
import sys
import time
from types import FrameType

from tidegate.runtime.parent_death import guard

# From SIGTERM to SIGKILL, for all processes together.
GRACE_S = 5.0
POLL_S = 0.02


def main(arguments: list[str]) -> int:
    """Run the server until it or the actor ends."""
    actor, command = int(arguments[0]), arguments[1:]
    early_signals: list[int] = []
    # An exception during Popen would leave a server that nothing ends.
    signal.signal(signal.SIGTERM, lambda number, _frame: early_signals.append(number))
    if not guard(actor, signal.SIGTERM):
        return 1
    server = subprocess.Popen(command, start_new_session=True)
    try:
        signal.signal(signal.SIGTERM, _stop)
        return 1 if early_signals else server.wait()
    except SystemExit:
        return 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # for a server that ended by itself
        _end_group(server)


def _stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the clean-up
    raise SystemExit


def _end_group(server: "subprocess.Popen[bytes]") -> None:
    """Send SIGTERM to every remaining process of the server, then SIGKILL."""
    until_s = time.monotonic() + GRACE_S
    is_left = _signal_group(server.pid, signal.SIGTERM)
    while is_left and time.monotonic() < until_s:
        time.sleep(POLL_S)
        server.poll()  # a process that was waited for has left the group
        is_left = _signal_group(server.pid, 0)
    if is_left:
        _signal_group(server.pid, signal.SIGKILL)


def _signal_group(group: int, number: int) -> bool:
    """Send a signal; False if the group has no process left."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
