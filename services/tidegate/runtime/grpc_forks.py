"""gRPC's fork handlers, off: a child that is forked in order to start a program must not wait for a lock of gRPC.

gRPC registers handlers with ``pthread_atfork``, so that a forked process may go on with it. No process of a run does:
forks start programs, or services before they use gRPC. The handlers run all the same, also in a fork of uvloop for
``subprocess_exec``, and there once waited for a thread that no child has: the parent's event loop stood still for
ever, as it waits until the program is started (issue 15).
"""

import os

SETTING = "GRPC_ENABLE_FORK_SUPPORT"


def leave_grpc_out_of_forks() -> None:
    """Switch the handlers off in this process and those it starts; before its first use of gRPC."""
    os.environ.setdefault(SETTING, "0")
