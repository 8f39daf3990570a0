"""Recomputes updates of a run, one after the other, and compares each with the run's own."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.core.ids import LineageName, PolicyVersion, TrajectoryId
from tidegate.core.records import Array
from tidegate.core.spaces import EnvironmentDescription
from tidegate.launch.forking import CHECKPOINTS
from tidegate.launch.run_folder import read_plan, settings_of
from tidegate.launch.run_plan import RunFile
from tidegate.launch.stored_policy import LEARNER, VERSIONS
from tidegate.learner.checkpoint import Checkpoint, checkpoints_in
from tidegate.learner.checkpoint import read as read_checkpoint
from tidegate.learner.environment_file import read_environment
from tidegate.learner.recomputing import Recomputer, differing
from tidegate.learner.steps_log import StepLine
from tidegate.runtime.json_lines_file import whole_lines
from tidegate.runtime.loading import load
from tidegate.trajectory_store.kept_updates import KeptBatch, KeptUpdates
from tidegate.weight_distribution.reading import VersionsOnDisk

STEPS_FILE = LEARNER / "steps.jsonl"


class RecomputedUpdate(msgspec.Struct, frozen=True, eq=False):
    """One recomputed update. ``kept_loss``: the run's own; None where its log no longer has it.

    ``differs``: the names of what is not equal to the last bit; ``compared``: with which kept files.
    """

    version: PolicyVersion
    num_trajectories: int
    left_out: list[TrajectoryId]
    metrics: dict[str, float]
    kept_loss: float | None
    compared: list[str]
    differs: list[str]


class Recomputation:
    """The updates on the way to one version of a run, from a kept state on."""

    def __init__(
        self,
        folder: Path,
        updates: KeptUpdates,
        *,
        target: PolicyVersion,
        since: PolicyVersion | None,
        without: TrajectoryId | None = None,
    ) -> None:
        """``since``: start no later than there; None: at the newest kept state before ``target``.

        ``without``: a trajectory that is left out with its group; nothing is compared from that update on.

        Raises:
            NotFoundError: the run has no such version, ``since`` is none of its ancestors, or nothing to start from.
            ConfigError: updates of this run cannot be recomputed, or its environment cannot be described.
            CorruptionError: the description of its environment is damaged.
        """
        record, plan = read_plan(folder)
        self._updates = updates
        self._path = updates.path_to(target)
        if since is not None and since.step >= 0 and not updates.tree.descends(target, since):
            raise NotFoundError(
                f"{target} was not trained from {since}",
                why="it is on a branch that was given up, or later",
                fix=f"name a version of {', '.join(name for name, _ in updates.tree.path(target))}",
            )
        self._target = target
        self._checkpoints = _checkpoints_on(folder / CHECKPOINTS, self._path, target)
        self._without = without
        self._changed_at = None if without is None else updates.update_of(without)
        if self._changed_at is not None and self._changed_at not in self._path:
            raise NotFoundError(
                f"Trajectory {without} has no part in {target}", why=f"it was used at {self._changed_at}"
            )
        self._recomputer = Recomputer(
            settings_of(folder, record, plan.file),
            plan.services["learner"],
            description=_description(folder, plan.file),
        )
        self._start = self._choose_start(since if self._changed_at is None else self._changed_at)
        self._versions = VersionsOnDisk(folder / VERSIONS)
        self._losses = _losses(folder / STEPS_FILE)

    @property
    def start(self) -> PolicyVersion | None:
        """The version whose checkpoint the updates start from; None: the run's first policy."""
        return self._start

    @property
    def num_updates(self) -> int:
        """How many updates there are to make."""
        return len(self._to_recompute())

    def _to_recompute(self) -> list[PolicyVersion]:
        first = 0 if self._start is None else self._start.step
        return [version for version in self._path if version.step >= first]

    def _choose_start(self, before: PolicyVersion | None) -> PolicyVersion | None:
        last = self._target.step - 1 if before is None else min(before.step, self._target.step - 1)
        kept = [version for version in self._checkpoints if version.step <= last]
        if kept:
            return max(kept, key=lambda version: version.step)
        if self._path and self._path[0].step > 0:
            raise NotFoundError(
                "No checkpoint before the update is kept, and this run began as a fork of another",
                fix="raise learner.keep_checkpoints in runs whose updates are to be recomputed",
            )
        return None

    def updates(self) -> Iterator[RecomputedUpdate]:
        """Make them, oldest first.

        Raises:
            NotFoundError: a payload is no longer on disk.
            CorruptionError: a payload or a checkpoint is damaged.
        """
        start = self._start
        self._recomputer.begin(None if start is None else read_checkpoint(self._checkpoints[start]))
        changed = False
        for before in self._to_recompute():
            batch = self._updates.batch(before)
            left_out: list[TrajectoryId] = []
            if before == self._changed_at:
                batch, left_out = _without(batch, self._without)
                changed = True
            metrics = self._recomputer.update(batch.trajectories, batch.lags, number=before.step + 1)
            made = PolicyVersion(lineage=before.lineage, step=before.step + 1)
            recomputed = RecomputedUpdate(
                version=made,
                num_trajectories=len(batch.trajectories),
                left_out=left_out,
                metrics=metrics,
                kept_loss=self._losses.get(made),
                compared=[],
                differs=[],
            )
            if not changed:
                self._compare(recomputed)
            yield recomputed

    def policy(self) -> dict[str, Array]:
        """The parameters after the newest update."""
        return self._recomputer.policy()

    def kept_policy(self, version: PolicyVersion) -> dict[str, Array] | None:
        """The run's own parameters of a version, where it keeps them."""
        if version in self._versions.versions():
            return self._versions.read(version).tensors
        path = self._checkpoints.get(version)
        return None if path is None else read_checkpoint(path).policy

    def _compare(self, recomputed: RecomputedUpdate) -> None:
        """With the step's line, with the version that weight distribution keeps, and with a checkpoint."""
        if recomputed.kept_loss is not None:
            recomputed.compared.append("loss")
            if recomputed.kept_loss != recomputed.metrics.get("loss"):
                recomputed.differs.append("loss")
        if recomputed.version in self._versions.versions():
            recomputed.compared.append("version")
            recomputed.differs.extend(
                differing(self._recomputer.policy(), self._versions.read(recomputed.version).tensors)
            )
        path = self._checkpoints.get(recomputed.version)
        if path is not None:
            recomputed.compared.append("checkpoint")
            recomputed.differs.extend(_differing_from(self._recomputer, read_checkpoint(path)))


def _description(folder: Path, file: RunFile) -> EnvironmentDescription | None:
    """The environment as the learner wrote it down, or, where that file is gone, as it is now; None for text."""
    if file.workload.kind != "segments":
        return None
    return read_environment(folder / LEARNER) or load("tidegate.vector_envs.describing:describe")(
        file.workload
    )


def _differing_from(recomputer: Recomputer, checkpoint: Checkpoint) -> list[str]:
    state = recomputer.state()
    found = [f"policy {name}" for name in differing(recomputer.policy(), checkpoint.policy)]
    found += [f"trainer {name}" for name in differing(state.tensors, checkpoint.trainer.tensors)]
    if msgspec.to_builtins(state.values) != msgspec.to_builtins(checkpoint.trainer.values):
        found.append("trainer values")
    return found


def _checkpoints_on(
    directory: Path, path: list[PolicyVersion], target: PolicyVersion
) -> dict[PolicyVersion, Path]:
    """The checkpoints of versions on the way to ``target``, and of ``target``."""
    if not directory.is_dir():
        return {}
    on_the_way = {*path, target}
    # A version that an update made may have been forked from: the same parameters under two names.
    on_the_way |= {PolicyVersion(lineage=each.lineage, step=each.step + 1) for each in path}
    return {version: found for found, version in checkpoints_in(directory).items() if version in on_the_way}


def _without(batch: KeptBatch, left_out: TrajectoryId | None) -> tuple[KeptBatch, list[TrajectoryId]]:
    group = next(each.group_id for each in batch.trajectories if each.trajectory_id == left_out)
    kept = [
        (each, lag)
        for each, lag in zip(batch.trajectories, batch.lags, strict=True)
        if each.group_id != group
    ]
    if not kept:
        raise ConfigError(
            f"Nothing is left of the update of {batch.version} without the group of {left_out}",
            why="the group is its whole batch",
        )
    gone = [each.trajectory_id for each in batch.trajectories if each.group_id == group]
    return KeptBatch(batch.version, [each for each, _ in kept], [lag for _, lag in kept]), gone


def _losses(path: Path) -> Mapping[PolicyVersion, float]:
    """The losses of the run's own steps; lines that a kill cut short are left out."""
    losses: dict[PolicyVersion, float] = {}
    for file in (path.with_name(f"{path.name}.1"), path):
        if not file.is_file():
            continue
        for step in whole_lines(file.read_bytes().splitlines(), StepLine):
            if step.loss is not None:
                losses[PolicyVersion(lineage=LineageName(step.lineage), step=step.step)] = step.loss
    return losses
