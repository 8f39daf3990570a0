"""Rows of the ledger to values and back."""

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain, count, cycle, repeat
from typing import Any, NamedTuple

import msgspec

from tidegate.core.batching import Candidate
from tidegate.core.ids import GroupId, LineageName, PolicyVersion, TrajectoryId
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import Lineage, LineageTree, clock_ahead_s
from tidegate.trajectory_store.state import Location
from tidegate.wire.columns import RecordColumns, SpanRow, spans_of

# Longer explanations are cut: a row stays narrow whatever a verifier or a peer writes.
DETAIL_CHARACTERS_MAX = 500

_encode_spans = msgspec.msgpack.Encoder().encode
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
ROWS_AT_ONCE = 32
_INSERT_AT_ONCE = _INSERT_ARRIVED + f", {_ARRIVED_ROW}" * (ROWS_AT_ONCE - 1)
CANDIDATE_COLUMNS = "seq, trajectory_id, group_id, group_size, spans, started_at_s, frame_id"


def frame_row(arrival: Arrival, *, frame_id: int) -> tuple[Any, ...]:
    """The row of a frame, for ``INSERT_FRAME``."""
    segment, offset, size = msgspec.structs.astuple(arrival.location)
    return frame_id, segment, offset, size, arrival.received_at_s, arrival.head, arrival.digest


def insert_arrived(db: sqlite3.Connection, rows: Iterable[tuple[Any, ...]]) -> None:
    """Insert what ``arrived`` made.

    Raises:
        sqlite3.IntegrityError: the ledger has a row of one of these trajectories.
    """
    listed = list(rows)
    whole = len(listed) - len(listed) % ROWS_AT_ONCE
    for start in range(0, whole, ROWS_AT_ONCE):
        db.execute(_INSERT_AT_ONCE, list(chain.from_iterable(listed[start : start + ROWS_AT_ONCE])))
    db.executemany(_INSERT_ARRIVED, listed[whole:])


def arrived(arrival: Arrival, *, first_seq: int, frame_id: int, now_s: float) -> Iterable[tuple[Any, ...]]:
    """The rows of the trajectories that arrived in a frame, for ``insert_arrived``."""
    columns = arrival.columns
    started_at_s, finished_at_s = arrival.times()
    returns = [[episode[0] for episode in episodes] for episodes in columns.episodes]
    return zip(
        count(first_seq),
        columns.trajectory_id,
        cycle(columns.group_id),
        cycle(columns.group_size),
        cycle(columns.curriculum_bin),
        cycle(columns.reward),
        cycle(columns.num_steps),
        cycle(columns.length_tokens),
        cycle(map(len, returns)),
        cycle([sum(values) / len(values) if values else None for values in returns]),
        cycle(map(_encode_spans, columns.spans)),
        cycle(started_at_s),
        cycle(finished_at_s),
        repeat(now_s),
        repeat(frame_id),
        arrival.frame_indexes,
        strict=False,
    )


def candidates_of(arrival: Arrival, *, first_seq: int, frame_id: int) -> list[Candidate]:
    """What batching needs to know of the trajectories that arrived in a frame."""
    columns = arrival.columns
    started_at_s, _ = arrival.times()
    return list(
        map(
            Candidate,
            count(first_seq),
            columns.trajectory_id,
            cycle(columns.group_id),
            cycle(columns.group_size),
            cycle(map(spans_of, columns.spans)),
            cycle(started_at_s),
            repeat(frame_id),
        )
    )


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
