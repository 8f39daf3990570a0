"""CPU time and memory of all processes of a run, which its monitor reads from the machine's /proc."""

import os

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/PID/stat after the name (proc_pid_stat(5)), counted from the state.
_CPU_FIELDS = slice(11, 15)  # user, system, and both of the children that were waited for
_RESIDENT_FIELD = 21


def _read(proc_fd: int, path: str) -> str:
    """A small file of /proc; empty where its process just ended."""
    try:
        file_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)
    except OSError:
        return ""
    try:
        return os.read(file_fd, 1 << 16).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(file_fd)


def _children(proc_fd: int, pid: int) -> list[int]:
    """Children of every thread of a process."""
    try:
        threads_fd = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc_fd)
    except OSError:
        return []
    try:
        threads = os.listdir(threads_fd)
    except OSError:
        threads = []
    finally:
        os.close(threads_fd)
    return [
        int(child) for thread in threads for child in _read(proc_fd, f"{pid}/task/{thread}/children").split()
    ]


def of_tree(proc_fd: int, first_pid: int) -> tuple[float, int]:
    """CPU seconds and resident bytes of ``first_pid`` and all its descendants.

    A process that lost its parent inside a pid namespace belongs to the first process of it and is counted there.
    """
    cpu_ticks, pages, waiting = 0, 0, [first_pid]
    while waiting:
        pid = waiting.pop()
        fields = _read(proc_fd, f"{pid}/stat").rpartition(")")[2].split()
        if fields:
            cpu_ticks += sum(map(int, fields[_CPU_FIELDS]))
            pages += int(fields[_RESIDENT_FIELD])
        waiting += _children(proc_fd, pid)
    return cpu_ticks / _TICKS_PER_S, pages * _PAGE_BYTES
