"""Completions that an update was made from, to be read by people: the best, the worst and one by chance.

They are read from the ledger, which keeps the texts and the rewards of its newest ``rows_kept_max`` trajectories.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

import msgspec

from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Trajectory
from tidegate.trajectory_store.schema import reading
from tidegate.wire.frame import decode_provenance

Why = Literal["best", "worst", "random"]


class ShownCompletion(msgspec.Struct, frozen=True):
    """One completion and why it was chosen; ``record``: without tensors; ``lag``: in versions, at its update."""

    why: Why
    lag: int
    record: Trajectory


def samples_of(path: Path, version: PolicyVersion) -> list[ShownCompletion]:
    """Samples of the update that made ``version``; none of segments, and of rows that were folded.

    ``path``: the ledger.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: the ledger cannot be read.
    """
    with reading(path) as db:
        # A row's trained_step is of the version that its update began with.
        rows = db.execute(
            "SELECT reward, lag, frame_id, frame_index FROM trajectories WHERE trained_lineage = ?"
            " AND trained_step = ? AND reward IS NOT NULL AND frame_id IS NOT NULL ORDER BY seq",
            (version.lineage, version.step - 1),
        ).fetchall()
        chosen = choose([row[0] for row in rows], chance=zlib.crc32(str(version).encode()))
        samples: list[ShownCompletion] = []
        for why, place in chosen:
            _, lag, frame_id, frame_index = cast("tuple[float, int, int, int]", rows[place])
            (head,) = db.execute("SELECT head FROM frames WHERE frame_id = ?", (frame_id,)).fetchone()
            records: list[Trajectory] = decode_provenance(head)
            samples.append(ShownCompletion(why=why, lag=lag, record=records[frame_index]))
    return samples


def choose(rewards: Sequence[float], *, chance: int) -> list[tuple[Why, int]]:
    """Positions of the best, of the worst, and of one of the others by ``chance``; of one or two, those alone."""
    if not rewards:
        return []
    places = range(len(rewards))
    best = max(places, key=lambda place: rewards[place])
    found: list[tuple[Why, int]] = [("best", best)]
    others = [place for place in places if place != best]
    if others:
        worst = min(others, key=lambda place: rewards[place])
        found.append(("worst", worst))
        others.remove(worst)
    if others:
        found.append(("random", others[chance % len(others)]))
    return found
