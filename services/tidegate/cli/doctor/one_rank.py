"""One update of a run of several ranks, computed again by one process: what ``doctor --smoke`` compares."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidegate.cli.accounting import ledger_path
from tidegate.core.errors import NotFoundError, TidegateError
from tidegate.core.ids import PolicyVersion
from tidegate.core.smoke import RanksFacts
from tidegate.launch.forking import CHECKPOINTS
from tidegate.launch.run_folder import read_plan, settings_of
from tidegate.learner.checkpoint import checkpoints_in
from tidegate.learner.checkpoint import read as read_checkpoint
from tidegate.learner.recomputing import Recomputer
from tidegate.trajectory_store.kept_updates import KeptBatch, KeptUpdates, open_updates


def compare_with_one_rank(folder: Path, updates: Sequence[Mapping[str, Any]]) -> RanksFacts:
    """The newest update that directly followed a checkpoint, by all ranks and by one; from the same state and batch.

    ``updates``: the lines of the run's ``steps.jsonl``. The run has ended: one process computes on its first device.
    """
    record, plan = read_plan(folder)
    config = msgspec.structs.replace(plan.services["learner"], ranks=1)
    lines = {(line["lineage"], line["step"]): line for line in updates}
    try:
        with open_updates(ledger_path(folder)) as kept:
            for path, version in reversed(checkpoints_in(folder / CHECKPOINTS).items()):
                line = lines.get((version.lineage, version.step + 1))
                batch = None if line is None else _batch(kept, version)
                if line is None or batch is None:
                    continue
                alone = Recomputer(settings_of(folder, record, plan.file), config, description=None)
                alone.begin(read_checkpoint(path))
                metrics = alone.update(batch.trajectories, batch.lags, number=version.step + 1)
                return RanksFacts(
                    version=f"{version.lineage}@{version.step + 1}",
                    loss=float(line["loss"]),
                    loss_alone=metrics["loss"],
                    grad_norm=float(line["metrics"]["grad_norm"]),
                    grad_norm_alone=metrics["grad_norm"],
                )
    except (TidegateError, RuntimeError, KeyError) as error:
        return RanksFacts(problem=f"{type(error).__name__}: {str(error)[:300]}")
    return RanksFacts(problem="no checkpoint is followed by an update whose batch is still there")


def _batch(kept: KeptUpdates, version: PolicyVersion) -> KeptBatch | None:
    try:
        return kept.batch(version)
    except NotFoundError:  # its payloads were deleted, or it is of a branch that a restore abandoned
        return None
