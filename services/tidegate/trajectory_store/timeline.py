"""Read-only sums over a ledger's rows by time: for the report and for ``plan``.

Queries group by time, so that a million trajectories come back as a few hundred numbers.
"""

from pathlib import Path

import msgspec

from tidegate.trajectory_store.folded_ids import read_folded
from tidegate.trajectory_store.row_sums import BY_PLACE, RowSums, bounds, groups_of, stretches
from tidegate.trajectory_store.schema import reading


class LedgerTimeline(msgspec.Struct, frozen=True):
    """Sums for each time slice, by its index.

    ``num_folded``: trajectories whose rows were folded; they count as having ended before the first slice.
    ``events``: trajectories by event; ``trained_steps``; ``stages_s``: mean seconds in each stage of what was trained.
    """

    num_folded: int
    events: dict[str, dict[int, int]]
    trained_steps: dict[int, int]
    stages_s: dict[str, dict[int, float]]


def last_event_s(path: Path) -> float | None:
    """Seconds since the epoch of the last arrival or end; None in an empty ledger.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: the ledger cannot be read.
    """
    with reading(path) as db:
        (last_s,) = db.execute(
            "SELECT max(coalesce(terminal_at_s, accepted_at_s)) FROM trajectories"
        ).fetchone()
    return last_s


def num_folded_rows(path: Path) -> int:
    """Trajectories whose rows were folded.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: the ledger cannot be read.
    """
    with reading(path) as db:
        return read_folded(db).through_seq


def first_kept_s(path: Path) -> float | None:
    """Seconds since the epoch of the arrival of the oldest row, where older ones were folded; else None.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: the ledger cannot be read.
    """
    with reading(path) as db:
        if not read_folded(db).through_seq:
            return None
        (first_s,) = db.execute("SELECT min(accepted_at_s) FROM trajectories").fetchone()
    return first_s


def read_timeline(path: Path, *, start_s: float, slice_s: float) -> LedgerTimeline:
    """The timeline in slices of ``slice_s`` seconds after ``start_s``.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: the ledger cannot be read.
    """
    sums = RowSums()
    with reading(path) as db:
        num_folded = read_folded(db).through_seq
        for first, last in stretches(*bounds(db)):
            for group in groups_of(db, BY_PLACE, start_s=start_s, bin_s=slice_s, first=first, last=last):
                sums.add(group)
    return timeline_of(sums, num_folded=num_folded)


def timeline_of(sums: RowSums, *, num_folded: int) -> LedgerTimeline:
    """The timeline of sums whose bins are its slices."""
    return LedgerTimeline(
        num_folded=num_folded,
        events={name: dict(counts) for name, counts in sums.events.items()},
        trained_steps=dict(sums.trained_steps),
        stages_s=sums.mean_stages_s(),
    )


def rollout_times(path: Path, *, num_max: int) -> list[tuple[float, float]]:
    """(seconds, steps or tokens) of at most some ``num_max`` rollouts, evenly through the run.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: the ledger cannot be read.
    """
    with reading(path) as db:
        (count,) = db.execute(
            "SELECT count(*) FROM trajectories WHERE finished_at_s > started_at_s"
        ).fetchone()
        rows = db.execute(
            "SELECT finished_at_s - started_at_s, max(num_steps, length_tokens) FROM trajectories"
            " WHERE finished_at_s > started_at_s AND seq % ?1 = 0",
            (max(1, count // num_max),),
        ).fetchall()
    return [(float(seconds), float(length)) for seconds, length in rows]
