"""Packing: rows of the oldest tasks become a chunk (``packed_tasks``), and rows again when one of them changes.

Nothing but the fraction of a millisecond of an admission is lost by it. Only an outcome that changes a packed
trajectory, which a restore revived, unpacks a chunk. Both are part of the caller's transaction.
``docs/decisions/0017-packed-journal.md`` gives the reasons.
"""

import sqlite3
from itertools import pairwise

import msgspec

from tidegate.core.ids import task_id
from tidegate.task_queue.packed_tasks import damaged, insert_packed, packed_with
from tidegate.task_queue.state import TrajectoryState

# What one transaction packs at most: under ten milliseconds, in which nothing else is written. To unpack a chunk takes
# 15 to 30.
CHUNK_TRAJECTORIES = 8_192
CHUNK_TASKS = 2_048

_TERMINAL = f"({int(TrajectoryState.TRAINED)}, {int(TrajectoryState.DROPPED)})"


class _TaskRow(msgspec.Struct, frozen=True):
    seq: int
    kind: str
    num_samples: int
    attempt: int
    admitted_at_s: float

    def can_follow(self, before: "_TaskRow") -> bool:
        """Whether it can be in one chunk with the task before."""
        return self.seq == before.seq + 1 and self._shared() == before._shared()

    def _shared(self) -> tuple[str, int, int]:
        return self.kind, self.num_samples, self.attempt


def pack(db: sqlite3.Connection) -> int:
    """Pack one chunk of the oldest tasks; returns its trajectories, 0 where none can be packed now.

    Raises:
        CorruptionError: the tasks do not have the trajectories that they were admitted with.
    """
    tasks = _oldest_alike(db)
    if not tasks or tasks[-1].seq >= _oldest_open(db):
        return 0
    first, last, num_samples = tasks[0].seq, tasks[-1].seq, tasks[0].num_samples
    num_trajectories = len(tasks) * num_samples
    dropped = bytearray(-(-num_trajectories // 8))
    theirs = f"seq BETWEEN ? AND ? AND sample_index BETWEEN 0 AND ? AND state IN {_TERMINAL}"
    for (place,) in db.execute(
        f"SELECT (seq - ?) * ? + sample_index FROM trajectories WHERE {theirs} AND state = ?",
        (first, num_samples, first, last, num_samples - 1, int(TrajectoryState.DROPPED)),
    ):
        dropped[place >> 3] |= 1 << (place & 7)
    found = db.execute(f"DELETE FROM trajectories WHERE {theirs}", (first, last, num_samples - 1)).rowcount
    if found != num_trajectories:
        raise damaged(
            first, last, why=f"{num_trajectories} trajectories of them were admitted, {found} are left"
        )
    db.execute("DELETE FROM tasks WHERE seq BETWEEN ? AND ?", (first, last))
    insert_packed(
        db,
        first=first,
        kind=tasks[0].kind,
        num_samples=num_samples,
        attempt=tasks[0].attempt,
        admitted_at_s=[task.admitted_at_s for task in tasks],
        dropped=bytes(dropped),
    )
    return num_trajectories


def unpack(db: sqlite3.Connection, seq: int) -> int:
    """Write the chunk of a task as rows again; returns its trajectories, 0 where the task is not packed.

    Raises:
        CorruptionError: the chunk is not what was written.
    """
    packed = packed_with(db, seq)
    if packed is None:
        return 0
    db.executemany(
        "INSERT INTO tasks (seq, task_id, kind, num_samples, admitted_at_s, published, attempt)"
        " VALUES (?, ?, ?, ?, ?, 1, ?)",
        [
            (each, task_id(each), packed.kind, packed.num_samples, at_s, packed.attempt)
            for each, at_s in enumerate(packed.admitted_at_s(), start=packed.first)
        ],
    )
    db.executemany(
        "INSERT INTO trajectories (seq, sample_index, state) VALUES (?, ?, ?)",
        [
            (packed.first + place // packed.num_samples, place % packed.num_samples, int(state))
            for place, state in enumerate(packed.states())
        ],
    )
    db.execute("DELETE FROM packed WHERE first = ?", (packed.first,))
    return packed.num_trajectories


def _oldest_alike(db: sqlite3.Connection) -> list[_TaskRow]:
    """The oldest tasks that make a whole chunk: a full one, or one that the next task cannot be a part of."""
    row = db.execute("SELECT num_samples FROM tasks ORDER BY seq LIMIT 1").fetchone()
    if row is None:
        return []
    most = max(1, min(CHUNK_TASKS, CHUNK_TRAJECTORIES // row[0]))
    rows = [
        _TaskRow(*columns)
        for columns in db.execute(
            "SELECT seq, kind, num_samples, attempt, admitted_at_s FROM tasks ORDER BY seq LIMIT ?",
            (most + 1,),
        )
    ]
    for number, (before, after) in enumerate(pairwise(rows), start=1):
        if number == most or not after.can_follow(before):
            return rows[:number]
    return []


def _oldest_open(db: sqlite3.Connection) -> float:
    """The oldest task that is not published or has a trajectory in flight; infinity where there is none."""
    seqs = db.execute(
        f"SELECT (SELECT min(seq) FROM trajectories WHERE state <= {int(TrajectoryState.ACCEPTED)}),"
        " (SELECT min(seq) FROM tasks WHERE published = 0)"
    ).fetchone()
    return min((seq for seq in seqs if seq is not None), default=float("inf"))
