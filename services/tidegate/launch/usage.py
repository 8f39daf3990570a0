"""CPU time and memory of processes, read from the system."""

import resource
import sys
from pathlib import Path

import psutil

MB = 1e6


def started_at_s() -> float:
    """When this process was started, in seconds since the epoch: before its first import."""
    return psutil.Process().create_time()


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, user and system; 0 when it is gone."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system


def pss_mb(pid: int) -> float:
    """Memory of a process with shared pages divided among their users, in MB; resident memory where there is no PSS."""
    if sys.platform.startswith("linux"):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        except OSError:
            return 0.0
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / MB
    try:
        return psutil.Process(pid).memory_info().rss / MB
    except psutil.Error:
        return 0.0


def tree_cpu_s(pids: list[int]) -> float:
    """CPU seconds of this process, of its running children ``pids``, and of the children that ended."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + sum(map(cpu_s, pids))
