"""A fork server as a program, in place of one that ended: ``python -m tidegate.launch.fork_server NAME DESCRIPTOR``."""

import os
import signal
import socket
import sys

from tidegate.launch.fork_server.preloading import load_shared, serve_forks
from tidegate.launch.guarded import SUPERVISOR_VARIABLE
from tidegate.runtime.parent_death import guard


def main() -> None:
    """Serve the supervisor that holds the other end of the socket DESCRIPTOR."""
    supervisor_pid = int(os.environ[SUPERVISOR_VARIABLE])
    if not guard(supervisor_pid, signal.SIGKILL):
        sys.exit(1)
    load_shared()
    serve_forks(sys.argv[1], socket.socket(fileno=int(sys.argv[2])), supervisor_pid=supervisor_pid)


if __name__ == "__main__":
    main()
