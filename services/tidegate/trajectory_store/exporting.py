"""Terminal trajectories of a live or stopped run's folder, a page at a time: for analysis elsewhere.

The ledger keeps a row and the provenance of every trajectory for ever (ids, versions, texts, rewards, timings); its
tensors lie in the segments for as long as ``retain_bytes_max`` allows. Each page is a transaction of its own, so that a
long export delays no cleanup of the live store.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidegate.core.errors import RecordError
from tidegate.core.ids import PolicyVersion, TrajectoryId
from tidegate.core.records import Array, Trajectory
from tidegate.trajectory_store.rows import version_of
from tidegate.trajectory_store.schema import LEDGER_FILE, reading
from tidegate.trajectory_store.segments import segment_path
from tidegate.wire.frame import decode_frame, decode_provenance

# A page's provenance and tensors are in memory at once; frames are at most 1 MiB inline, mostly of a whole group.
PAGE_ROWS = 128


class Ended(msgspec.Struct, frozen=True, eq=False):
    """One trajectory in its terminal state.

    ``record``: what is known of how it was made, without tensors; None for one that ended before it arrived.
    ``tensors``: None where they were not requested, or are not kept any more.
    """

    trajectory_id: TrajectoryId
    group_id: str
    group_size: int
    curriculum_bin: str
    state: str
    reason: str
    detail: str
    reward: float | None
    num_steps: int
    length_tokens: int
    mean_return: float | None
    trained_at: PolicyVersion | None
    lag: int | None
    span: int | None
    age_s: float | None
    started_at_s: float
    finished_at_s: float
    received_at_s: float | None
    accepted_at_s: float
    leased_at_s: float | None
    terminal_at_s: float | None
    record: Trajectory | None
    tensors: dict[str, Array] | None


# Fields of ``Ended`` that are columns of the ledger's tables as they are.
_FIELDS = (
    "trajectory_id",
    "group_id",
    "group_size",
    "curriculum_bin",
    "state",
    "reason",
    "detail",
    "reward",
    "num_steps",
    "length_tokens",
    "mean_return",
    "lag",
    "span",
    "age_s",
    "started_at_s",
    "finished_at_s",
    "received_at_s",
    "accepted_at_s",
    "leased_at_s",
    "terminal_at_s",
)
_COLUMNS = f"seq, frame_id, frame_index, trained_lineage, trained_step, {', '.join(_FIELDS)}"


def ended(folder: Path, *, since_step: int = 0, with_tensors: bool = False) -> Iterator[list[Ended]]:
    """Pages of what is terminal, in order of arrival: trained at ``since_step`` or later, or dropped since then.

    ``folder``: the store's own.

    Raises:
        NotFoundError: there is no ledger.
        StaleFolderError: another version of the schema wrote it.
        CorruptionError: it cannot be read.
    """
    after_seq = 0
    dropped_since_s: float | None = None
    while True:
        with reading(folder / LEDGER_FILE) as db:
            if since_step and dropped_since_s is None:
                dropped_since_s = _first_update_at_s(db, since_step)
            found = db.execute(
                f"SELECT {_COLUMNS} FROM trajectories LEFT JOIN frames USING (frame_id)"
                " WHERE seq > :after AND (state = 'trained' AND trained_step >= :step"
                " OR state = 'dropped' AND (:step = 0 OR terminal_at_s >= :since))"
                " ORDER BY seq LIMIT :limit",
                {"after": after_seq, "step": since_step, "since": dropped_since_s, "limit": PAGE_ROWS},
            ).fetchall()
            records = _records(db, {row[1] for row in found if row[1] is not None})
            places = _places(db, records) if with_tensors else {}
        if not found:
            return
        after_seq = found[-1][0]
        tensors = {frame_id: _tensors(folder, place) for frame_id, place in places.items()}
        yield [_ended(row, records, tensors) for row in found]


def held_tensors(folder: Path, trajectory_id: str) -> dict[str, Array] | None:
    """The tensors of one trajectory; None where they are not kept any more, or it never arrived.

    ``folder``: the store's own.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: as ``ended``.
    """
    with reading(folder / LEDGER_FILE) as db:
        place = db.execute(
            "SELECT segment, offset, size, frame_index FROM trajectories JOIN frames USING (frame_id)"
            " WHERE trajectory_id = ?",
            (trajectory_id,),
        ).fetchone()
    if place is None:
        return None
    frame_index: int = place[3]
    held = _tensors(folder, place[:3])
    return None if held is None else held[frame_index]


def _first_update_at_s(db: sqlite3.Connection, step: int) -> float | None:
    """When the first trajectory was trained at ``step`` or later."""
    (at_s,) = db.execute(
        "SELECT min(terminal_at_s) FROM trajectories WHERE trained_step >= ?", (step,)
    ).fetchone()
    return at_s


def _records(db: sqlite3.Connection, frame_ids: set[int]) -> dict[int, list[Trajectory]]:
    """The records of each frame, decoded once for all of its trajectories."""
    return {
        frame_id: decode_provenance(head)
        for frame_id in frame_ids
        for (head,) in db.execute("SELECT head FROM frames WHERE frame_id = ?", (frame_id,))
    }


def _places(
    db: sqlite3.Connection, frame_ids: dict[int, list[Trajectory]]
) -> dict[int, tuple[int, int, int]]:
    return {
        frame_id: place
        for frame_id in frame_ids
        for place in db.execute("SELECT segment, offset, size FROM frames WHERE frame_id = ?", (frame_id,))
    }


def _tensors(folder: Path, place: tuple[int, int, int]) -> list[dict[str, Array]] | None:
    """The tensors of each record of a frame; None where its bytes are no longer kept."""
    segment, offset, size = place
    try:
        with segment_path(folder / "segments", segment).open("rb") as file:
            records = decode_frame(os.pread(file.fileno(), size, offset))
    except (OSError, RecordError):
        return None
    return [record.tensors for record in records]


def _ended(
    row: Sequence[Any],
    records: dict[int, list[Trajectory]],
    tensors: dict[int, list[dict[str, Array]] | None],
) -> Ended:
    _, frame_id, _, lineage, step, *plain = row
    frame_index: int = row[2]
    of_frame, held = records.get(frame_id), tensors.get(frame_id)
    return Ended(
        **dict(zip(_FIELDS, plain, strict=True)),
        trained_at=version_of(lineage, step),
        record=of_frame[frame_index] if of_frame is not None else None,
        tensors=held[frame_index] if held is not None else None,
    )
