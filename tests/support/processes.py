"""What a test asks about a process by its id, when the process may end at any moment."""

import psutil


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not yet reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
