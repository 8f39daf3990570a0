"""Rows of the ledger to values and back."""

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeVar

import msgspec

from tidegate.core.batching import Candidate
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, TrajectoryId
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import Lineage, LineageTree, clock_ahead_s
from tidegate.trajectory_store.state import Location
from tidegate.wire.columns import EpisodeRow, RecordColumns, SpanRow, spans_of

# Longer explanations are cut: a row stays narrow whatever a verifier or a peer writes.
DETAIL_CHARACTERS_MAX = 500

Value = TypeVar("Value")

# Most records of a moment have one of a few versions.
_encoded_spans = lru_cache(maxsize=1024)(msgspec.msgpack.Encoder().encode)
_decode_spans = msgspec.msgpack.Decoder(tuple[SpanRow, ...]).decode


class Arrival(msgspec.Struct, frozen=True, eq=False):
    """A frame whose bytes are in the segments, with those of its records that the ledger does not know yet.

    ``head``: the frame's provenance, of all of its records. ``digest``: see ``hash_chain.frame_digest``.
    ``frame_indexes``: the place of each record in it; a range as long as the ledger knows none of them.
    """

    location: Location
    head: bytes
    digest: bytes
    columns: RecordColumns
    frame_indexes: Sequence[int]
    received_at_s: float

    @property
    def is_whole(self) -> bool:
        """Whether the ledger knew none of the frame's records."""
        return isinstance(self.frame_indexes, range)

    def times(self) -> tuple[list[float], list[float]]:
        """Start and end of each record, or one for all, less what the actor's clock is ahead (``clock_ahead_s``)."""
        started, finished = self.columns.started_at_s, self.columns.finished_at_s
        # A clock that was set back during a rollout, or that of another actor, gave it a start after its end.
        ahead_s = clock_ahead_s(max(*started, *finished), received_at_s=self.received_at_s)
        if not ahead_s:
            return started, finished
        return [each - ahead_s for each in started], [each - ahead_s for each in finished]

    def only(self, positions: Sequence[int]) -> "Arrival":
        """With some of its records, by position."""
        return msgspec.structs.replace(
            self,
            columns=self.columns.only(positions),
            frame_indexes=[self.frame_indexes[position] for position in positions],
        )


def only_new(arrivals: Sequence[Arrival], *, known: set[TrajectoryId]) -> list[Arrival]:
    """Each trajectory once, and none of ``known``, to which it adds them."""
    fresh: list[Arrival] = []
    for arrival in arrivals:
        new: list[int] = []
        for position, name in enumerate(arrival.columns.trajectory_id):
            if name not in known:
                known.add(name)
                new.append(position)
        if new:
            fresh.append(arrival.only(new))
    return fresh


class NewTrajectoryRow(NamedTuple):
    """The row of a trajectory that ended without ever arriving, its fields in the order of ``INSERT_ROW``."""

    seq: int
    trajectory_id: TrajectoryId
    state: str
    reason: str
    detail: str
    accepted_at_s: float
    started_at_s: float
    finished_at_s: float
    terminal_at_s: float
    group_id: str = ""
    group_size: int = 1
    curriculum_bin: str = "all"
    num_steps: int = 0
    length_tokens: int = 0
    num_episodes: int = 0
    frame_index: int = 0
    num_revivals: int = 0


# Of a trajectory that arrived: what never changes.
ARRIVED_COLUMNS = (
    "seq",
    "trajectory_id",
    "group_id",
    "group_size",
    "curriculum_bin",
    "reward",
    "num_steps",
    "length_tokens",
    "num_episodes",
    "mean_return",
    "spans",
    "started_at_s",
    "finished_at_s",
    "accepted_at_s",
    "frame_id",
    "frame_index",
)
_COLUMNS = NewTrajectoryRow._fields
INSERT_ROW = f"INSERT INTO trajectories ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
INSERT_FRAME = (
    "INSERT INTO frames (frame_id, segment, offset, size, received_at_s, head, digest)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
# Fails when the ledger has a row of that trajectory: whatever arrives again is found by its unique key.
_ARRIVED_ROW = f"({', '.join('?' * len(ARRIVED_COLUMNS))}, 'available', '', '', 0)"
_INSERT_ARRIVED = (
    f"INSERT INTO trajectories ({', '.join(ARRIVED_COLUMNS)}, state, reason, detail, num_revivals)"
    f" VALUES {_ARRIVED_ROW}"
)
# Of one statement: a fifth of a row's CPU is the statement's own.
ROWS_AT_ONCE = 16
_INSERT_AT_ONCE = _INSERT_ARRIVED + f", {_ARRIVED_ROW}" * (ROWS_AT_ONCE - 1)
CANDIDATE_COLUMNS = "seq, trajectory_id, group_id, group_size, spans, started_at_s, frame_id"


def frame_row(arrival: Arrival, *, frame_id: int) -> tuple[Any, ...]:
    """The row of a frame, for ``INSERT_FRAME``."""
    segment, offset, size = msgspec.structs.astuple(arrival.location)
    return frame_id, segment, offset, size, arrival.received_at_s, arrival.head, arrival.digest


def insert_arrived(db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert what ``ArrivedColumns.rows`` made.

    Raises:
        sqlite3.IntegrityError: the ledger has a row of one of these trajectories.
    """
    whole = len(rows) - len(rows) % ROWS_AT_ONCE
    for start in range(0, whole, ROWS_AT_ONCE):
        db.execute(_INSERT_AT_ONCE, list(chain.from_iterable(rows[start : start + ROWS_AT_ONCE])))
    db.executemany(_INSERT_ARRIVED, rows[whole:])


class ArrivedColumns:
    """The trajectories that arrived in some frames as columns, which their rows and their candidates share.

    Column by column for all frames, because an iterator costs more than a value, and most frames have one record.
    """

    def __init__(self, arrivals: Sequence[Arrival], *, first_seq: int, first_frame: int) -> None:
        """Rows are numbered on from ``first_seq``, frames from ``first_frame``."""
        self._arrivals = arrivals
        self._frames = [arrival.columns for arrival in arrivals]
        self._sizes = [len(columns) for columns in self._frames]
        self._seqs = range(first_seq, first_seq + sum(self._sizes))
        times = [arrival.times() for arrival in arrivals]
        self._started = self._values([started for started, _ in times])
        self._finished = self._values([finished for _, finished in times])
        self._ids = list(chain.from_iterable([columns.trajectory_id for columns in self._frames]))
        self._groups = self._values([columns.group_id for columns in self._frames])
        self._group_sizes = self._values([columns.group_size for columns in self._frames])
        self._spans = self._values([columns.spans for columns in self._frames])
        self._frame_ids = self._values([[first_frame + number] for number in range(len(arrivals))])

    def _values(self, columns: Sequence[list[Value]]) -> list[Value]:
        """The value of each record, of one column of each frame, where one may stand for all records of a frame."""
        values: list[Value] = []
        for column, size in zip(columns, self._sizes, strict=True):
            values += column if len(column) == size else column * size
        return values

    def rows(self, *, now_s: float) -> list[tuple[Any, ...]]:
        """In the order of ``ARRIVED_COLUMNS``, for ``insert_arrived``."""
        frames = self._frames
        episodes = self._values([columns.episodes for columns in frames])
        return list(
            zip(
                self._seqs,
                self._ids,
                self._groups,
                self._group_sizes,
                self._values([columns.curriculum_bin for columns in frames]),
                self._values([columns.reward for columns in frames]),
                self._values([columns.num_steps for columns in frames]),
                self._values([columns.length_tokens for columns in frames]),
                map(len, episodes),
                map(_mean_return, episodes),
                map(_encoded_spans, self._spans),
                self._started,
                self._finished,
                repeat(now_s),
                self._frame_ids,
                chain.from_iterable([arrival.frame_indexes for arrival in self._arrivals]),
                strict=False,
            )
        )

    def candidates(self) -> list[Candidate]:
        """What batching needs to know of them."""
        columns = (self._seqs, self._ids, self._groups, self._group_sizes)
        return list(map(Candidate, *columns, map(spans_of, self._spans), self._started, self._frame_ids))


def _mean_return(episodes: Sequence[EpisodeRow]) -> float | None:
    return sum([episode[0] for episode in episodes]) / len(episodes) if episodes else None


def never_arrived(
    seq: int, trajectory_id: TrajectoryId, *, state: str, now_s: float, reason: str = "", detail: str = ""
) -> NewTrajectoryRow:
    """The row of a trajectory that ended, or was trained by a lost ledger's account, without a payload here."""
    return NewTrajectoryRow(
        seq=seq,
        trajectory_id=trajectory_id,
        state=state,
        accepted_at_s=now_s,
        started_at_s=now_s,
        finished_at_s=now_s,
        terminal_at_s=now_s,
        reason=reason,
        detail=detail[:DETAIL_CHARACTERS_MAX],
    )


def candidate_from_row(row: Sequence[Any]) -> Candidate:
    """A row of ``CANDIDATE_COLUMNS``."""
    seq, trajectory_id, group_id, group_size, spans, started_at_s, frame_id = row
    return Candidate(
        seq=seq,
        trajectory_id=TrajectoryId(trajectory_id),
        group_id=GroupId(group_id),
        group_size=group_size,
        spans=spans_from(spans),
        started_at_s=started_at_s,
        frame_id=frame_id,
    )


def spans_from(column: bytes) -> tuple[VersionSpan, ...]:
    """The column ``spans`` of a row."""
    return spans_of(_decode_spans(column))


def version_of(lineage: str | None, step: int | None) -> PolicyVersion | None:
    """Two columns as one version; None when they are empty."""
    if lineage is None or step is None:
        return None
    return PolicyVersion(lineage=LineageName(lineage), step=step)


def tree_of(rows: Sequence[tuple[str, str | None, int]]) -> LineageTree:
    """The lineages of the run, from (name, parent, fork_step) in the order they were opened."""
    tree = LineageTree()
    for name, parent, fork_step in rows:
        tree = tree.add(
            Lineage(
                name=LineageName(name), parent=LineageName(parent) if parent else None, fork_step=fork_step
            )
        )
    return tree
