"""Read-only sums over a ledger's rows by how they ended: what the receipt of a run adds up."""

from pathlib import Path

from tidegate.core.receipt import EndedTotal
from tidegate.core.records import DropReason
from tidegate.trajectory_store.schema import reading

_QUERY = """
SELECT state, reason, count(*), coalesce(sum(num_steps), 0) FROM trajectories
WHERE state IN ('trained', 'dropped') GROUP BY state, reason
"""


def ended_totals(path: Path) -> tuple[EndedTotal, dict[DropReason, EndedTotal]]:
    """What was trained, and what was dropped by reason; rows that were folded are in neither.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: the ledger cannot be read.
    """
    trained, dropped = EndedTotal(), dict[DropReason, EndedTotal]()
    with reading(path) as db:
        for state, reason, count, steps in db.execute(_QUERY):
            if state == "trained":
                trained = EndedTotal(trained.trajectories + count, trained.steps + steps)
            else:
                dropped[reason] = EndedTotal(count, steps)
    return trained, dropped
