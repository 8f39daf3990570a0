"""Batches of units that the store's replay drew: transitions or sequences of trajectories that were used before or not.

Shapes: B units, R trajectories that they are of.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.core.ids import PolicyVersion, TrajectoryId
from tidegate.core.records import Trajectory
from tidegate.core.staleness import Fresh, LineageTree, StalenessLimits, judge_measured, lag_offset, span_of
from tidegate.learner.committing import TrainedBatch, TrainedUnits
from tidegate.learner.optim.replay_port import ReplayUnits
from tidegate.learner.state import (
    JudgedTrajectory,
    OutdatedBatch,
    OutdatedTrajectory,
    TrainingProgress,
    outdated_by,
)
from tidegate.wire.clients.trajectory_store import Consumption, SampledUnits, TrajectoryStoreClient
from tidegate.wire.columns import SpanRow
from tidegate.wire.samples import ReplaySample, SampledRow

# Spans of versions repeat from batch to batch; beyond so many they are forgotten and measured again.
SPANS_MAX = 65_536


class ReplayBatch(msgspec.Struct, frozen=True, eq=False):
    """See ``training_batch.TrainingBatch``. ``judged`` has the trajectories of ``sample.rows``, in their order."""

    sample: ReplaySample
    judged: tuple[JudgedTrajectory, ...]
    lags_B: NDArray[np.int64]
    units_per_trajectory: int

    @property
    def batch_id(self) -> str:
        """See ``TrainingBatch``."""
        return self.sample.batch_id

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """See ``TrainingBatch``."""
        return ()

    @property
    def work(self) -> ReplayUnits:
        """See ``TrainingBatch``."""
        sample = self.sample
        return ReplayUnits(
            ids_B=sample.ids,
            probabilities_B=sample.probabilities,
            num_open=sample.num_open,
            lags_B=self.lags_B,
            tensors=sample.tensors,
        )

    @property
    def lags(self) -> list[int]:
        """See ``TrainingBatch``."""
        return self.lags_B.tolist()

    @property
    def num_consumed(self) -> int:
        """See ``TrainingBatch``."""
        return sum(row.is_unused for row in self.sample.rows)

    def progress_after(self, progress: TrainingProgress) -> TrainingProgress:
        """See ``TrainingBatch``. Steps are those that actors recorded, however often each is replayed."""
        sample = self.sample
        return progress.after_units(
            num_units=len(sample.ids),
            num_first_uses=self.num_consumed,
            inserted_steps=sample.inserted_steps,
            episodes=sample.episodes,
        )

    def trained(self, version: PolicyVersion, priorities: NDArray[np.float32] | None) -> TrainedBatch:
        """See ``TrainingBatch``."""
        sample = self.sample
        return TrainedBatch(
            batch_id=self.batch_id,
            version=version,
            consumptions=[
                Consumption(item.trajectory_id, item.verdict)
                for item, row in zip(self.judged, sample.rows, strict=True)
                if row.is_unused
            ],
            units=TrainedUnits(
                sampled=SampledUnits(sample.ids, priorities, int(self.lags_B.max(initial=0))),
                trajectory_ids=[row.trajectory_id for row in sample.rows],
                row_of=sample.row_of,
                per_trajectory=self.units_per_trajectory,
            ),
        )

    def parts(self) -> list[tuple[TrajectoryId, Any]]:
        """See ``TrainingBatch``."""
        units = self.work
        return [
            (row.trajectory_id, units.rows(self.sample.row_of == index))
            for index, row in enumerate(self.sample.rows)
        ]


class ReplaySupply:
    """See ``batches.Supply``."""

    def __init__(
        self,
        store: TrajectoryStoreClient,
        *,
        batch_size: int,
        budget: Callable[[], StalenessLimits],
        units_per_trajectory: int,
    ) -> None:
        """``units_per_trajectory``: the steps of a segment, over all of its environments."""
        self._store = store
        self._batch_size = batch_size
        self._budget = budget
        self._units_per_trajectory = units_per_trajectory
        self._spans = SpanMeasures()

    async def request(
        self, version: PolicyVersion, *, learner_id: str, max_wait_s: float, held: Sequence[str]
    ) -> ReplaySample | None:
        """Sample a batch.

        Raises:
            TidegateError: the store is away, or rejects this learner.
        """
        return await self._store.sample_batch(
            version,
            batch_size=self._batch_size,
            limits=self._budget(),
            max_wait_s=max_wait_s,
            learner_id=learner_id,
            held=held,
        )

    def judge(
        self, leased: ReplaySample, *, version: PolicyVersion, tree: LineageTree, now_s: float, held_s: float
    ) -> ReplayBatch | OutdatedBatch:
        """Judge each trajectory that units are of.

        Raises:
            UnknownVersionError: a span names a lineage that the run never opened.
        """
        judged: list[JudgedTrajectory] = []
        outdated: list[OutdatedTrajectory] = []
        for row in leased.rows:
            lag, span = self._spans.measure(row, version=version, tree=tree)
            age_s = max(now_s - row.started_at_s, row.age_s + held_s)
            verdict = judge_measured(lag=lag, span=span, age_s=age_s, limits=self._budget())
            if isinstance(verdict, Fresh):
                judged.append(JudgedTrajectory(row.trajectory_id, verdict))
            else:
                outdated.append(outdated_by(verdict, row.trajectory_id))
        if outdated:
            return OutdatedBatch(tuple(outdated))
        lags_R = np.array([item.verdict.lag for item in judged], np.int64)
        return ReplayBatch(leased, tuple(judged), lags_R[leased.row_of], self._units_per_trajectory)


class SpanMeasures:
    """Lag and span of trajectories by their versions, each computed once while the learner's lineage is the same.

    A batch may be of hundreds of trajectories, and ``core.staleness.judge`` walks the tree for each.
    """

    def __init__(self) -> None:
        self._tree = LineageTree()
        self._measured: dict[tuple[SpanRow, ...], tuple[int, int]] = {}

    def measure(self, row: SampledRow, *, version: PolicyVersion, tree: LineageTree) -> tuple[int, int]:
        """The lag at ``version`` and the span, as ``judge`` finds them.

        Raises:
            UnknownVersionError: a span names a lineage that the run never opened.
        """
        if tree is not self._tree or len(self._measured) >= SPANS_MAX:
            self._tree = tree
            self._measured.clear()
        found = self._measured.get(row.spans)
        if found is None:
            spans = row.version_spans()
            found = lag_offset(spans, version.lineage, tree), span_of(spans, tree)
            self._measured[row.spans] = found
        return max(0, found[0] + version.step), found[1]
