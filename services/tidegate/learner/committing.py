"""After an update: commit its batch at the store and publish its version, both repeated until acknowledged.

It runs while the next batch is trained, one step behind at most: a learner never gets two versions ahead of what the
ledger and the actors know. Commit and publish need no order between them: the task queue counts what is trained but
not announced (``core.admission``), and a crash between the two leaves nothing that a restore does not mend.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from tidegate.core.records import PolicySnapshot
from tidegate.core.staleness import LineageTree
from tidegate.learner.retrying import until_done
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.trajectory_store import ConsumedBatch, TrajectoryStoreClient
from tidegate.wire.clients.weight_distribution import WeightDistributionClient


class CommitTimes(msgspec.Struct, frozen=True):
    """How long it took to be acknowledged, in seconds."""

    commit_s: float
    publish_s: float


class StepCommitter:
    """At most one step under way; ``begin`` waits for the one before."""

    def __init__(
        self, context: ServiceContext, store: TrajectoryStoreClient, weights: WeightDistributionClient
    ) -> None:
        """Nothing is under way."""
        self._context = context
        self._store = store
        self._weights = weights
        self._task: asyncio.Task[None] | None = None
        self._unacknowledged: dict[str, ConsumedBatch] = {}

    def unacknowledged(self) -> tuple[ConsumedBatch, ...]:
        """Batches that updates were trained on and whose commit may not have arrived: a checkpoint holds them."""
        return tuple(self._unacknowledged.values())

    async def begin(
        self,
        batch: ConsumedBatch,
        snapshot: PolicySnapshot,
        tree: LineageTree,
        *,
        trace_parent: str,
        done: Callable[[CommitTimes], None],
    ) -> None:
        """Start to settle a step once the one before is settled; ``done`` hears of it.

        Raises:
            ConflictError: another learner took over (found out by the step before).
        """
        # Before anything is waited for: from this moment on a checkpoint holds the update, so it must hold its batch.
        self._unacknowledged[batch.batch_id] = batch
        await self.wait()
        self._task = asyncio.create_task(
            self._commit_and_publish(batch, snapshot, tree, trace_parent=trace_parent, done=done),
            name="commit",
        )

    async def wait(self) -> None:
        """Until nothing is under way.

        Raises:
            ConflictError: another learner took over.
        """
        if self._task is not None:
            await self._task
            self._task = None

    async def check(self) -> None:
        """Learn of a failure without waiting for the end.

        Raises:
            ConflictError: another learner took over.
        """
        if self._task is not None and self._task.done():
            await self.wait()

    async def publish(self, snapshot: PolicySnapshot, tree: LineageTree, *, trace_parent: str) -> float:
        """Publish one version; returns the seconds until it was acknowledged.

        Raises:
            ConflictError: another learner published past it.
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
        batch: ConsumedBatch,
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

    async def _commit(self, batch: ConsumedBatch) -> float:
        seconds = await self._timed(
            until_done(
                self._context,
                lambda: self._store.commit_batch(
                    batch.batch_id, version=batch.version, consumptions=batch.consumptions
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
