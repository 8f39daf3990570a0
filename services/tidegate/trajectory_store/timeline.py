"""Read-only sums over a ledger's rows by time: for the report and for ``plan``.

Queries group by time, so that a million trajectories come back as a few hundred numbers.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tidegate.trajectory_store.folded_ids import read_folded
from tidegate.trajectory_store.schema import reading

# Events of a trajectory by the column of their time. One that was dropped while it waited left the store unleased.
EVENTS: Mapping[str, str] = {
    "stored": "accepted_at_s",
    "leased": "coalesce(leased_at_s, terminal_at_s)",
    "ended": "terminal_at_s",
}
STAGES: Mapping[str, str] = {
    "rollout": "finished_at_s - started_at_s",
    "in transit": "accepted_at_s - finished_at_s",
    "waiting for a batch": "leased_at_s - accepted_at_s",
    "in a batch": "terminal_at_s - leased_at_s",
}


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
    with reading(path) as db:
        num_folded = read_folded(db).through_seq
        events = {
            name: dict(
                db.execute(
                    f"SELECT CAST(max(0, {column} - ?1) / ?2 AS INTEGER), count(*) FROM trajectories"
                    f" WHERE {column} IS NOT NULL GROUP BY 1",
                    (start_s, slice_s),
                ).fetchall()
            )
            for name, column in EVENTS.items()
        }
        steps = dict(
            db.execute(
                "SELECT CAST((terminal_at_s - ?1) / ?2 AS INTEGER), sum(num_steps) FROM trajectories"
                " WHERE state = 'trained' GROUP BY 1",
                (start_s, slice_s),
            ).fetchall()
        )
        means = ", ".join(f"avg({span})" for span in STAGES.values())
        rows = db.execute(
            f"SELECT CAST(max(0, terminal_at_s - ?1) / ?2 AS INTEGER), {means} FROM trajectories"
            " WHERE state = 'trained' AND leased_at_s IS NOT NULL GROUP BY 1 ORDER BY 1",
            (start_s, slice_s),
        ).fetchall()
    stages_s = {name: {row[0]: float(row[1 + index]) for row in rows} for index, name in enumerate(STAGES)}
    return LedgerTimeline(num_folded=num_folded, events=events, trained_steps=steps, stages_s=stages_s)


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
