"""CPU time of a whole process tree, short-lived processes included.

The kernel adds the time of a process that ended to its parent's ``cutime`` when the parent waits for it. The times of
the living plus their ``cutime`` therefore hold every process that ever ran below a root, whether or not anybody looked
while it did. Two gaps are closed here: a tree that changes while it is read is read again, and a process whose parent
ended before it comes to this process instead of to init (``adopt_orphans``).

Resolution: the kernel shows hundredths of a second, so a difference is right within 10 ms a living process.
"""

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tidegate.core.errors import UnavailableError

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# A tree of a dozen processes is read in a millisecond; one that changes through this many readings is no steady state.
READINGS_MAX = 20
_PR_SET_CHILD_SUBREAPER = 36


class ProcessTimes(msgspec.Struct, frozen=True):
    """One process: its parent, CPU seconds of its own, and of its descendants that ended and were waited for."""

    parent: int
    own_s: float
    waited_s: float


def parse_stat(text: str) -> ProcessTimes:
    """Read ``/proc/<pid>/stat``. The name, in parentheses, may hold anything, parentheses and spaces included."""
    fields = text[text.rindex(")") + 1 :].split()
    ticks = [int(field) for field in fields[11:15]]
    return ProcessTimes(
        parent=int(fields[1]),
        own_s=(ticks[0] + ticks[1]) / TICKS_PER_S,
        waited_s=(ticks[2] + ticks[3]) / TICKS_PER_S,
    )


def read_processes(proc: Path = PROC) -> dict[int, ProcessTimes]:
    """Every process there is, by pid; zombies count until somebody waits for them."""
    processes: dict[int, ProcessTimes] = {}
    for entry in os.listdir(proc):
        if entry.isdigit():
            try:
                processes[int(entry)] = parse_stat((proc / entry / "stat").read_text(errors="replace"))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return processes


def descendants(processes: Mapping[int, ProcessTimes], roots: set[int]) -> set[int]:
    """``roots`` that exist, and everything below them."""
    children: dict[int, list[int]] = {}
    for pid, times in processes.items():
        children.setdefault(times.parent, []).append(pid)
    found: set[int] = set()
    waiting = [root for root in roots if root in processes]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found


def tree_cpu_s(roots: set[int]) -> float:
    """CPU seconds of ``roots``, of all below them, and of what ended there and was waited for.

    Raises:
        UnavailableError: processes came and went too fast for one consistent reading, or there is no ``/proc``.
    """
    if not PROC.is_dir():
        raise UnavailableError(
            f"CPU time of processes cannot be read on {sys.platform}",
            why="it has no /proc",
            fix="run the benches on Linux",
        )
    for _ in range(READINGS_MAX):
        processes = read_processes()
        tree = descendants(processes, roots)
        if descendants(read_processes(), roots) == tree:
            return sum(processes[pid].own_s + processes[pid].waited_s for pid in tree)
    raise UnavailableError(
        "The processes under measurement change too fast to be added up",
        why=f"{READINGS_MAX} readings in a row found another set",
        fix="a service may be failing over and over: see its log",
    )


def own_tree_cpu_s() -> float:
    """CPU seconds of this process, of all below it, and of what it started and waited for."""
    return tree_cpu_s({os.getpid()})


def adopt_orphans(*, adopt: bool) -> None:
    """Whether the kernel gives this process the children of descendants that end, so that their time is not lost."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


def children_of(parent: int) -> set[int]:
    """The living children of a process, zombies included."""
    return {pid for pid, times in read_processes().items() if times.parent == parent}


def machine_busy_s() -> float:
    """CPU seconds that all cores together were busy since the machine started, with whatever."""
    fields = (PROC / "stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, *rest = (int(field) for field in fields)
    steal = rest[0] if rest else 0
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S
