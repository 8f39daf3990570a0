"""Chunks of packed tasks: what is left of the journal's oldest tasks, all of whose trajectories ended.

A chunk is tasks numbered without a gap that are alike: of one kind, attempt and number of samples, which a run does not
change. So what remains of a trajectory is one bit (trained or dropped), and of a task the delay since the admission
before it. Every chunk is held against the numbers beside it before a reader sees its content.
"""

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import msgspec

from tidegate.core.errors import CorruptionError
from tidegate.core.records import TaskKind
from tidegate.task_queue.state import Counts, TrajectoryState

# Chunks kept decoded: outcomes of packed trajectories come in about the order of their tasks.
CHUNKS_CACHED = 8

# An id that an operator types may name a task beyond what SQLite has numbers for.
SEQ_MAX = (1 << 63) - 1

# The index holds the numbers that are summed when a journal is opened, so that this reads no content.
SCHEMA = (
    """
    CREATE TABLE packed (
        first INTEGER PRIMARY KEY,
        last INTEGER NOT NULL,
        kind TEXT NOT NULL,
        num_samples INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        num_dropped INTEGER NOT NULL,
        from_ms INTEGER NOT NULL,
        to_ms INTEGER NOT NULL,
        content BLOB NOT NULL
    )
    """,
    "CREATE INDEX packed_numbers ON packed (from_ms, last, num_samples, num_dropped)",
)

_COLUMNS = "first, last, kind, num_samples, attempt, num_dropped, from_ms, to_ms, content"


class PackedContent(msgspec.Struct, frozen=True, array_like=True):
    """What a chunk holds of each task and trajectory.

    ``delays_ms``: of each task since the admission before it; of the first, since ``from_ms``. ``dropped``: a bit of
    each trajectory, in order of task and sample; the others were trained.
    """

    delays_ms: tuple[int, ...]
    dropped: bytes


class PackedTasks(msgspec.Struct, frozen=True, array_like=True):
    """One chunk: tasks ``first`` to ``last``, admitted between ``from_ms`` and ``to_ms`` (since the epoch)."""

    first: int
    last: int
    kind: TaskKind
    num_samples: int
    attempt: int
    num_dropped: int
    from_ms: int
    to_ms: int
    content: bytes

    @property
    def num_trajectories(self) -> int:
        """Of all its tasks."""
        return (self.last - self.first + 1) * self.num_samples

    def admitted_at_s(self) -> list[float]:
        """When each task was admitted (seconds since the epoch), to the millisecond.

        Raises:
            CorruptionError: as ``content_of``.
        """
        return [at_ms / 1000 for at_ms in _times_ms(self, content_of(self))]

    def states(self) -> list[TrajectoryState]:
        """The state of each trajectory, in order of task and sample.

        Raises:
            CorruptionError: as ``content_of``.
        """
        dropped = content_of(self).dropped
        return [_state_at(dropped, place) for place in range(self.num_trajectories)]

    def state(self, place: int) -> TrajectoryState:
        """The state of one trajectory, by its place among all of them.

        Raises:
            CorruptionError: as ``content_of``.
        """
        return _state_at(content_of(self).dropped, place)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PackedContent).decode


@lru_cache(maxsize=CHUNKS_CACHED)
def content_of(packed: PackedTasks) -> PackedContent:
    """The content of a chunk.

    Raises:
        CorruptionError: it is not what was written, or does not agree with the numbers beside it.
    """
    try:
        content = _decode(zlib.decompress(packed.content))
    except (zlib.error, msgspec.DecodeError) as error:
        raise damaged(packed.first, packed.last, why=str(error)) from error
    agrees = (
        len(content.delays_ms) == packed.last - packed.first + 1
        and len(content.dropped) == -(-packed.num_trajectories // 8)
        and _num_bits(content.dropped) == packed.num_dropped
        and max(_times_ms(packed, content)) == packed.to_ms
    )
    if not agrees:
        raise damaged(
            packed.first, packed.last, why="their content does not agree with the numbers beside it"
        )
    return content


def insert_packed(
    db: sqlite3.Connection,
    *,
    first: int,
    kind: str,
    num_samples: int,
    attempt: int,
    admitted_at_s: Sequence[float],
    dropped: bytes,
) -> None:
    """Write a chunk of as many tasks as there are times; ``dropped`` as in ``PackedContent``."""
    times_ms = [round(at_s * 1000) for at_s in admitted_at_s]
    from_ms = min(times_ms)
    delays_ms = tuple(after - before for before, after in zip([from_ms, *times_ms], times_ms, strict=False))
    content = zlib.compress(_encode(PackedContent(delays_ms, dropped)))
    db.execute(
        f"INSERT INTO packed ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            first,
            first + len(times_ms) - 1,
            kind,
            num_samples,
            attempt,
            _num_bits(dropped),
            from_ms,
            max(times_ms),
            content,
        ),
    )


def all_packed(db: sqlite3.Connection) -> Iterator[PackedTasks]:
    """Every chunk, oldest first.

    Raises:
        CorruptionError: a column is not what was written.
    """
    return map(_checked, db.execute(f"SELECT {_COLUMNS} FROM packed ORDER BY first"))


def packed_with(db: sqlite3.Connection, seq: int) -> PackedTasks | None:
    """The chunk that a task is packed in; None where it is not.

    Raises:
        CorruptionError: a column is not what was written.
    """
    if seq > SEQ_MAX:
        return None
    row = db.execute(
        f"SELECT {_COLUMNS} FROM packed WHERE first <= ? ORDER BY first DESC LIMIT 1", (seq,)
    ).fetchone()
    packed = None if row is None else _checked(row)
    return packed if packed is not None and seq <= packed.last else None


def packed_state(db: sqlite3.Connection, seq: int, sample_index: int) -> TrajectoryState | None:
    """The state of a packed trajectory; None where there is no such one.

    Raises:
        CorruptionError: as ``content_of``.
    """
    packed = packed_with(db, seq)
    if packed is None or sample_index >= packed.num_samples:
        return None
    return packed.state((seq - packed.first) * packed.num_samples + sample_index)


def count_columns(db: sqlite3.Connection) -> Counts:
    """Packed trajectories by state, from the numbers beside each chunk."""
    total, dropped = db.execute(
        "SELECT coalesce(sum((last - first + 1) * num_samples), 0), coalesce(sum(num_dropped), 0) FROM packed"
    ).fetchone()
    return Counts(trained=total - dropped, dropped=dropped)


def count_contents(db: sqlite3.Connection) -> Counts:
    """Packed trajectories by state, from every bit of every chunk: the slow twin of ``count_columns``.

    Raises:
        CorruptionError: as ``content_of``.
    """
    total = dropped = 0
    for packed in all_packed(db):
        total += packed.num_trajectories
        dropped += _num_bits(content_of(packed).dropped)
    return Counts(trained=total - dropped, dropped=dropped)


def damaged(first: object, last: object, *, why: str) -> CorruptionError:
    """The error that names tasks which are not what was written."""
    return CorruptionError(
        f"Tasks {first} to {last} of the journal cannot be read",
        why=why,
        fix="put the file back from a copy, or begin at the newest checkpoint with `tidegate fork`",
    )


def _checked(row: Sequence[Any]) -> PackedTasks:
    try:
        return msgspec.convert(row, PackedTasks)
    except msgspec.ValidationError as error:
        raise damaged(row[0], row[1], why=str(error)) from error


def _times_ms(packed: PackedTasks, content: PackedContent) -> Iterator[int]:
    return accumulate(content.delays_ms[1:], initial=packed.from_ms + content.delays_ms[0])


def _state_at(dropped: bytes, place: int) -> TrajectoryState:
    return TrajectoryState.DROPPED if dropped[place >> 3] >> (place & 7) & 1 else TrajectoryState.TRAINED


def _num_bits(bits: bytes) -> int:
    return int.from_bytes(bits, "little").bit_count()
