"""Which trajectories of the task queue were folded: exact, and a few bytes for any number that ended in order.

Runs of consecutive tasks whose folded samples are the same are one entry, so a run that folds its rows in the order of
arrival keeps about one entry for each task that never has a row (an evaluation), however many trajectories it had.
"""

import hashlib
import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice

import msgspec

from tidegate.core.ids import TrajectoryId, position_of, trajectory_at
from tidegate.trajectory_store.hash_chain import FoldedNote

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(FoldedNote).decode


class TaskRun(msgspec.Struct, frozen=True, array_like=True):
    """Tasks ``first`` to ``last``, whose samples in the bit set ``samples`` (hexadecimal) were folded."""

    first: int
    last: int
    samples: str


class ChangedRuns(msgspec.Struct, frozen=True):
    """What adding trajectories did to the runs: those from ``first`` to ``last`` (by their first task) are ``runs``."""

    first: int
    last: int
    runs: Sequence[TaskRun]


class FoldedIds:
    """The set, in memory: 150 bytes a run."""

    def __init__(self, runs: Iterable[TaskRun] = ()) -> None:
        self._runs = list(runs)
        self._firsts = [run.first for run in self._runs]
        self._lasts = [run.last for run in self._runs]

    def __contains__(self, name: str) -> bool:
        if not self._runs:
            return False
        where = position_of(name)
        if where is None:
            return False
        task, sample = where
        index = bisect_left(self._lasts, task)
        if index == len(self._runs) or self._firsts[index] > task:
            return False
        return bool(int(self._runs[index].samples, 16) >> sample & 1)

    @property
    def runs(self) -> Sequence[TaskRun]:
        """The runs, by their tasks."""
        return self._runs

    def names(self) -> Iterator[TrajectoryId]:
        """Every trajectory in the set."""
        for run in self._runs:
            samples = samples_of(int(run.samples, 16))
            for task in range(run.first, run.last + 1):
                for sample in samples:
                    yield trajectory_at(task, sample)

    def with_added(self, added: Mapping[int, int]) -> tuple["FoldedIds", ChangedRuns]:
        """The set with samples (a bit set) of each of some tasks, at least one, and what changed."""
        lowest, highest = min(added), max(added)
        # The neighbours may become a part of the same run.
        start = bisect_left(self._lasts, lowest - 1)
        stop = bisect_right(self._firsts, highest + 1)
        before = self._runs[start:stop]
        after = _joined(_pieces(before, added))
        change = ChangedRuns(
            before[0].first if before else lowest, before[-1].first if before else highest, after
        )
        return FoldedIds([*self._runs[:start], *after, *self._runs[stop:]]), change


def read_folded(db: sqlite3.Connection) -> FoldedNote:
    """What is left of the folded rows; of none, in a ledger that never folded.

    Raises:
        msgspec.MsgspecError: it was changed and cannot be read.
    """
    row = db.execute("SELECT content FROM folded").fetchone()
    return _decode(row[0]) if row else FoldedNote()


def load_ids(db: sqlite3.Connection) -> FoldedIds:
    """The folded trajectories of the task queue."""
    return FoldedIds(
        TaskRun(*row) for row in db.execute("SELECT first, last, samples FROM folded_tasks ORDER BY first")
    )


def digest_of_tasks(ids: FoldedIds) -> bytes:
    """SHA-256 of the runs of tasks; empty of none."""
    return hashlib.sha256(_encode(ids.runs)).digest() if ids.runs else b""


def folded_among(
    db: sqlite3.Connection, ids: FoldedIds, names: Collection[TrajectoryId]
) -> set[TrajectoryId]:
    """Which of these had a row that was folded."""
    found = {name for name in names if name in ids}
    if db.execute("SELECT 1 FROM folded_ids").fetchone():
        others = msgspec.json.encode(list(names)).decode()
        rows = db.execute(
            "SELECT trajectory_id FROM folded_ids WHERE trajectory_id IN (SELECT value FROM json_each(?))",
            (others,),
        )
        found |= {TrajectoryId(name) for (name,) in rows}
    return found


def folded_names(db: sqlite3.Connection, *, at_once: int) -> Iterator[list[TrajectoryId]]:
    """Every trajectory whose row was folded, in lists of at most ``at_once``."""
    others = (TrajectoryId(name) for (name,) in db.execute("SELECT trajectory_id FROM folded_ids"))
    names = chain(load_ids(db).names(), others)
    while some := list(islice(names, at_once)):
        yield some


def samples_of(mask: int) -> list[int]:
    """The places of the bits that are set."""
    return [place for place in range(mask.bit_length()) if mask >> place & 1]


def _pieces(runs: Sequence[TaskRun], added: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
    """Disjoint pieces (first, last, samples) of what was and what is added, in order."""
    tasks = sorted(added)
    place = 0
    for run in runs:
        mask = int(run.samples, 16)
        while place < len(tasks) and tasks[place] < run.first:
            yield tasks[place], tasks[place], added[tasks[place]]
            place += 1
        first = run.first
        while place < len(tasks) and tasks[place] <= run.last:
            task = tasks[place]
            if first < task:
                yield first, task - 1, mask
            yield task, task, mask | added[task]
            first = task + 1
            place += 1
        if first <= run.last:
            yield first, run.last, mask
    for task in tasks[place:]:
        yield task, task, added[task]


def _joined(pieces: Iterable[tuple[int, int, int]]) -> list[TaskRun]:
    found: list[tuple[int, int, int]] = []
    for first, last, mask in pieces:
        if found and found[-1][1] + 1 == first and found[-1][2] == mask:
            found[-1] = (found[-1][0], last, mask)
        else:
            found.append((first, last, mask))
    return [TaskRun(first, last, f"{mask:x}") for first, last, mask in found]
