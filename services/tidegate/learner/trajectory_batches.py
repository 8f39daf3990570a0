"""Batches of whole trajectories, each of which is trained once."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.core.batching import training_order
from tidegate.core.ids import PolicyVersion, TrajectoryId
from tidegate.core.records import Trajectory
from tidegate.core.staleness import LineageTree, StalenessLimits
from tidegate.learner.committing import TrainedBatch
from tidegate.learner.state import JudgedTrajectory, OutdatedBatch, TrainingProgress, recheck
from tidegate.wire.clients.streamed_batches import LeasedBatch
from tidegate.wire.clients.trajectory_store import Consumption, TrajectoryStoreClient


class TrajectoryBatch(msgspec.Struct, frozen=True, eq=False):
    """See ``training_batch.TrainingBatch``."""

    batch_id: str
    trajectories: list[Trajectory]
    judged: tuple[JudgedTrajectory, ...]

    @property
    def work(self) -> Any:
        """See ``TrainingBatch``."""
        return self.trajectories

    @property
    def lags(self) -> list[int]:
        """See ``TrainingBatch``."""
        return [item.verdict.lag for item in self.judged]

    @property
    def num_consumed(self) -> int:
        """See ``TrainingBatch``."""
        return len(self.trajectories)

    def progress_after(self, progress: TrainingProgress) -> TrainingProgress:
        """See ``TrainingBatch``."""
        return progress.after(self.trajectories)

    def trained(self, version: PolicyVersion, priorities: NDArray[np.float32] | None) -> TrainedBatch:
        """See ``TrainingBatch``; whole trajectories have no priorities."""
        del priorities
        return TrainedBatch(
            batch_id=self.batch_id,
            version=version,
            consumptions=[Consumption(item.trajectory_id, item.verdict) for item in self.judged],
        )

    def parts(self) -> list[tuple[TrajectoryId, Any]]:
        """See ``TrainingBatch``."""
        return [(trajectory.trajectory_id, [trajectory]) for trajectory in self.trajectories]


class TrajectorySupply:
    """See ``batches.Supply``."""

    def __init__(
        self, store: TrajectoryStoreClient, *, batch_size: int, budget: Callable[[], StalenessLimits]
    ) -> None:
        self._store = store
        self._batch_size = batch_size
        self._budget = budget

    async def request(
        self, version: PolicyVersion, *, learner_id: str, max_wait_s: float, held: Sequence[str]
    ) -> LeasedBatch | None:
        """Lease a batch.

        Raises:
            TidegateError: the store is away, or rejects this learner.
        """
        return await self._store.lease_batch(
            version,
            batch_size=self._batch_size,
            limits=self._budget(),
            max_wait_s=max_wait_s,
            learner_id=learner_id,
            held=held,
        )

    def judge(
        self, leased: LeasedBatch, *, version: PolicyVersion, tree: LineageTree, now_s: float, held_s: float
    ) -> TrajectoryBatch | OutdatedBatch:
        """Judge each trajectory.

        Raises:
            UnknownVersionError: a span names a lineage that the run never opened.
        """
        trajectories = [leased.trajectories[index] for index in training_order(leased.trajectories)]
        ages_s = [
            max(now_s - trajectory.started_at_s, leased.ages_s[trajectory.trajectory_id] + held_s)
            for trajectory in trajectories
        ]
        verdict = recheck(trajectories, ages_s, version=version, tree=tree, limits=self._budget())
        if isinstance(verdict, OutdatedBatch):
            return verdict
        return TrajectoryBatch(leased.batch_id, trajectories, verdict.judged)
