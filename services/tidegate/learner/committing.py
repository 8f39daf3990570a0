"""After an update: commit its batch to the store and publish its version, both retried until acknowledged.

It runs while the next batch is trained, at most one step behind: a learner is never two versions ahead of the ledger
and the actors. Commit and publish are unordered: the task queue counts trajectories that are trained and unannounced
(``core.admission``), and a restore repairs a crash between the two.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.core.ids import PolicyVersion, TrajectoryId
from tidegate.core.records import PolicySnapshot
from tidegate.core.staleness import LineageTree
from tidegate.learner.retrying import until_done
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.trajectory_store import (
    ConsumedBatch,
    Consumption,
    SampledUnits,
    TrajectoryStoreClient,
)
from tidegate.wire.clients.weight_distribution import WeightDistributionClient


class TrainedUnits(msgspec.Struct, frozen=True, eq=False):
    """The units of a sampled batch: unit b is of trajectory ``trajectory_ids[row_of[b]]``.

    ``per_trajectory``: ids count so many units for each trajectory.
    """

    sampled: SampledUnits
    trajectory_ids: list[TrajectoryId]
    row_of: NDArray[np.int64]
    per_trajectory: int

    def by_trajectory(self) -> dict[TrajectoryId, list[int]]:
        """The places of the units in their trajectories."""
        places: dict[TrajectoryId, list[int]] = {}
        places_B: list[int] = (self.sampled.ids % self.per_trajectory).tolist()
        rows_B: list[int] = self.row_of.tolist()
        for place, row in zip(places_B, rows_B, strict=True):
            places.setdefault(self.trajectory_ids[row], []).append(place)
        return places


class TrainedBatch(msgspec.Struct, frozen=True, eq=False):
    """A batch that updated ``version``. ``consumptions``: of trajectories used for the first time.

    ``units``: of a sampled batch.
    """

    batch_id: str
    version: PolicyVersion
    consumptions: list[Consumption]
    units: TrainedUnits | None = None

    def consumed(self) -> ConsumedBatch:
        """As a checkpoint holds it."""
        units = self.units
        return ConsumedBatch(
            batch_id=self.batch_id,
            version=self.version,
            consumptions=self.consumptions,
            units={} if units is None else units.by_trajectory(),
            max_lag=0 if units is None else units.sampled.max_lag,
        )


class CommitTimes(msgspec.Struct, frozen=True):
    """Seconds until each was acknowledged."""

    commit_s: float
    publish_s: float


class StepCommitter:
    """At most one step in flight; ``begin`` waits for the previous one."""

    def __init__(
        self, context: ServiceContext, store: TrajectoryStoreClient, weights: WeightDistributionClient
    ) -> None:
        self._context = context
        self._store = store
        self._weights = weights
        self._task: asyncio.Task[None] | None = None
        self._unacknowledged: dict[str, TrainedBatch] = {}

    def uncommitted(self) -> list[str]:
        """The names of the trained batches whose commit was not acknowledged."""
        return list(self._unacknowledged)

    def unacknowledged(self) -> tuple[ConsumedBatch, ...]:
        """Trained batches whose commit was not acknowledged: a checkpoint holds them."""
        return tuple(batch.consumed() for batch in self._unacknowledged.values())

    async def begin(
        self,
        batch: TrainedBatch,
        snapshot: PolicySnapshot,
        tree: LineageTree,
        *,
        trace_parent: str,
        done: Callable[[CommitTimes], None],
    ) -> None:
        """Start to commit and publish a step once the previous one is acknowledged, then call ``done``.

        Raises:
            ConflictError: another learner took over (detected by the previous step).
        """
        # Before the first await: from now on a checkpoint contains the update, so it must contain its batch.
        self._unacknowledged[batch.batch_id] = batch
        await self.wait()
        self._task = asyncio.create_task(
            self._commit_and_publish(batch, snapshot, tree, trace_parent=trace_parent, done=done),
            name="commit",
        )

    async def wait(self) -> None:
        """Wait for the step in flight.

        Raises:
            ConflictError: another learner took over.
        """
        if self._task is not None:
            await self._task
            self._task = None

    async def check(self) -> None:
        """Raise the failure of a finished step; does not wait for a running one.

        Raises:
            ConflictError: another learner took over.
        """
        if self._task is not None and self._task.done():
            await self.wait()

    async def publish(self, snapshot: PolicySnapshot, tree: LineageTree, *, trace_parent: str) -> float:
        """Publish one version; returns the seconds until it was acknowledged.

        Raises:
            ConflictError: another learner published a newer version.
        """
        return await self._timed(
            until_done(
                self._context,
                lambda: self._weights.publish(snapshot, tree, trace_parent=trace_parent),
                what="publish",
            )
        )

    async def _commit_and_publish(
        self,
        batch: TrainedBatch,
        snapshot: PolicySnapshot,
        tree: LineageTree,
        *,
        trace_parent: str,
        done: Callable[[CommitTimes], None],
    ) -> None:
        commit_s, publish_s = await asyncio.gather(
            self._commit(batch), self.publish(snapshot, tree, trace_parent=trace_parent)
        )
        done(CommitTimes(commit_s=commit_s, publish_s=publish_s))

    async def _commit(self, batch: TrainedBatch) -> float:
        seconds = await self._timed(
            until_done(
                self._context,
                lambda: self._store.commit_batch(
                    batch.batch_id,
                    version=batch.version,
                    consumptions=batch.consumptions,
                    sampled=None if batch.units is None else batch.units.sampled,
                ),
                what="commit_batch",
            )
        )
        del self._unacknowledged[batch.batch_id]
        return seconds

    async def _timed(self, work: Coroutine[Any, Any, None]) -> float:
        started_s = self._context.clock.monotonic_s()
        await work
        return self._context.clock.monotonic_s() - started_s
