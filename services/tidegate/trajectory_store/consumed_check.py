"""What a learner says that its checkpoint was trained on, before the ledger takes its word for it."""

import sqlite3
from collections.abc import Sequence

from tidegate.core.errors import ConflictError, RecordError
from tidegate.core.ids import PolicyVersion, TrajectoryId
from tidegate.core.replay import OPEN_END, surviving_steps
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.trajectory_store.replay.accounting import units_of_ledger
from tidegate.wire.clients.trajectory_store import ConsumedBatch


def check_consumed(
    db: sqlite3.Connection, lineage: Lineage, consumed: Sequence[ConsumedBatch], tree: LineageTree
) -> None:
    """Refuse updates that no checkpoint of a branch holds: a trajectory would count as trained twice in it (I3).

    ``tree`` holds ``lineage``, which is being opened, already.

    Raises:
        RecordError: an update is not of the branch, a trajectory is in two of them, or units come from no replay.
        ConflictError: the ledger has a trajectory in another update of the branch.
    """
    surviving = surviving_steps(PolicyVersion(lineage=lineage.name, step=OPEN_END), tree)
    seen: set[TrajectoryId] = set()
    for batch in consumed:
        version = batch.version
        if version.lineage == lineage.name or version.step >= surviving.get(version.lineage, 0):
            raise RecordError(
                f"Lineage {lineage.name} names an update at {version}",
                why=f"it forks at {lineage.parent}@{lineage.fork_step}, and has no such update",
            )
        if batch.units:  # uses of sampled trajectories are counted by unit
            if units_of_ledger(db) is None:
                raise RecordError(
                    f"Lineage {lineage.name} names units of replay",
                    why="a store without replay gives out none",
                )
            continue
        for item in batch.consumptions:
            if item.trajectory_id in seen:
                raise RecordError(f"Lineage {lineage.name} names {item.trajectory_id} in two updates")
            seen.add(item.trajectory_id)
            uses = db.execute(
                "SELECT lineage, step FROM uses JOIN trajectories USING (seq) WHERE trajectory_id = ?",
                (item.trajectory_id,),
            )
            for used in (PolicyVersion(lineage=name, step=step) for name, step in uses):
                if used != version and used.step < surviving.get(used.lineage, 0):
                    raise ConflictError(
                        f"{item.trajectory_id} was trained at {used}, and lineage {lineage.name} names {version}",
                        why="a trajectory is trained once in a branch, and these are two updates of one",
                        fix="restore an earlier checkpoint of the learner",
                    )
