"""CPU time of a whole process tree, short-lived processes included.

When a parent waits for a child that ended, the kernel adds the child's CPU time to the parent's ``children_user`` and
``children_system``. The times of the living processes and of their waited-for children therefore cover every process
that ever ran below a root. Two gaps are closed here: a tree that changes during a reading is read again, and a process
whose parent ended is reparented to this process instead of to init (``adopt_orphans``).

Resolution: the kernel counts in hundredths of a second, so a difference is right within 10 ms a living process.
"""

import ctypes
import os
import sys
from collections.abc import Iterable

import psutil

from tidegate.core.errors import UnavailableError

# A tree of a dozen processes is read in milliseconds; one that changes through this many readings is no steady state.
READINGS_MAX = 20
_PR_SET_CHILD_SUBREAPER = 36


def tree_of(roots: Iterable[int]) -> set[psutil.Process]:
    """The ``roots`` that exist and all their descendants, zombies included."""
    found: set[psutil.Process] = set()
    for pid in roots:
        try:
            root = psutil.Process(pid)
            found |= {root, *root.children(recursive=True)}
        except psutil.NoSuchProcess:
            continue
    return found


def tree_cpu_s(roots: Iterable[int]) -> float:
    """CPU seconds of ``roots``, of their descendants, and of descendants that ended and were waited for.

    Raises:
        UnavailableError: processes start and end too fast for one consistent reading, or this is not Linux.
    """
    if not psutil.LINUX:
        raise UnavailableError(
            f"CPU time of a process tree cannot be read on {sys.platform}",
            why="its kernel keeps no CPU time of children that were waited for",
            fix="run the benches on Linux",
        )
    for _ in range(READINGS_MAX):
        tree = tree_of(roots)
        try:
            spent_s = sum(
                sum(process.cpu_times()[:4]) for process in tree
            )  # own and children's, user and system
        except psutil.NoSuchProcess:
            continue
        if tree_of(roots) == tree:
            return spent_s
    raise UnavailableError(
        "The processes under measurement change too fast to be added up",
        why=f"each of {READINGS_MAX} readings found another set of processes",
        fix="a service may be failing over and over: see its log",
    )


def own_tree_cpu_s() -> float:
    """CPU seconds of this process, of its descendants, and of descendants that it waited for."""
    return tree_cpu_s({os.getpid()})


def command_cpu_s(root: int, word: str) -> float:
    """CPU seconds of the processes below ``root`` whose command line has a word, and of what they started."""
    found: set[int] = set()
    for process in tree_of({root}) - {psutil.Process(root)}:
        try:
            if word in process.cmdline():
                found.add(process.pid)
        except psutil.NoSuchProcess:
            continue
    return tree_cpu_s(found)


def process_cpu_s(pid: int) -> float | None:
    """CPU seconds of one process without its children; None when it does not exist."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return None
    return times.user + times.system


def adopt_orphans(*, adopt: bool) -> None:
    """Have the kernel reparent orphaned descendants to this process, so that their CPU time is not lost."""
    if psutil.LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


def children_of(parent: int) -> set[int]:
    """The living children of a process, zombies included."""
    try:
        return {child.pid for child in psutil.Process(parent).children()}
    except psutil.NoSuchProcess:
        return set()


def machine_busy_s() -> float:
    """CPU seconds that all cores together were busy since the machine started, in any process."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq + times.steal
