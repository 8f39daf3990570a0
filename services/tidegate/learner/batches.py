"""Leases batches from the store, one ahead when the budget allows, and rechecks their staleness before use."""

import asyncio
import contextlib

import msgspec

from tidegate.catalogue import learner as statistics
from tidegate.core.errors import TidegateError
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Trajectory
from tidegate.core.staleness import LineageTree, StalenessLimits
from tidegate.learner.retrying import until_done
from tidegate.learner.state import JudgedTrajectory, OutdatedTrajectory, TrainableBatch, recheck
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.trajectory_store import Dropped, LeasedBatch, TrajectoryStoreClient

BACKOFF_S = 0.2


class ReadyBatch(msgspec.Struct, frozen=True, eq=False):
    """A leased batch inside the staleness budget of the version that it will update."""

    batch_id: str
    trajectories: list[Trajectory]
    judged: tuple[JudgedTrajectory, ...]


class BatchSource:
    """At most one batch in training and one leased ahead; both end with a commit, or with ``close``.

    A batch is always leased for the version it will update, so the store judges it by the lag it is going to have.
    """

    def __init__(
        self,
        context: ServiceContext,
        store: TrajectoryStoreClient,
        *,
        learner_id: str,
        lease_wait_s: float,
    ) -> None:
        """``lease_wait_s`` bounds one poll, and with it how long draining waits for a poll in flight."""
        settings = context.settings
        self._context = context
        self._store = store
        self._learner_id = learner_id
        self._lease_wait_s = lease_wait_s
        self._batch_size = settings.batch_size
        self._limits = StalenessLimits(
            max_lag=settings.staleness.max_lag, max_age_s=settings.staleness.max_age_s
        )
        self._ahead: asyncio.Task[LeasedBatch | None] | None = None
        self.num_outdated = 0

    async def next(self, version: PolicyVersion, tree: LineageTree) -> ReadyBatch | OutdatedTrajectory | None:
        """A batch to update ``version`` with; None when none was ready within one poll.

        ``OutdatedTrajectory`` when the leased batch left the budget meanwhile; it was released.

        Raises:
            TidegateError: the store rejects this learner.
        """
        leased = await self._take(version)
        if leased is None:
            return None
        # They are in the order of their arrival, which is the broker's: the same batch is to give the same update.
        trajectories = sorted(leased.trajectories, key=lambda trajectory: trajectory.task_id)
        verdict = recheck(
            trajectories,
            version=version,
            tree=tree,
            limits=self._limits,
            now_s=self._context.clock.now_s(),
        )
        if isinstance(verdict, TrainableBatch):
            return ReadyBatch(leased.batch_id, trajectories, verdict.judged)
        self.num_outdated += len(verdict.outdated)
        dropped = [
            Dropped(trajectory_id=item.trajectory_id, reason=item.reason, detail=item.detail)
            for item in verdict.outdated
        ]
        await self.release(leased.batch_id, dropped=dropped)
        return verdict.outdated[0]

    def prefetch(self, version: PolicyVersion) -> None:
        """Start to lease the batch after the next one; does nothing while a lease is in flight."""
        if self._ahead is None:
            self._ahead = asyncio.create_task(self._lease(version), name="lease-ahead")

    async def release(self, batch_id: str, *, dropped: list[Dropped] | None = None) -> None:
        """Release a batch; ``dropped`` trajectories do not return to the store."""
        await until_done(
            self._context,
            lambda: self._store.release_batch(batch_id, dropped=dropped or ()),
            what="release_batch",
        )

    async def close(self) -> None:
        """Release the batch that was leased ahead."""
        if self._ahead is None:
            return
        with contextlib.suppress(TidegateError):  # opening the next lineage ends the lease
            leased = await self._ahead
            if leased is not None:
                await self._store.release_batch(leased.batch_id)
        self._ahead = None

    async def _take(self, version: PolicyVersion) -> LeasedBatch | None:
        if self._ahead is None:
            return await self._lease(version)
        ahead, self._ahead = self._ahead, None
        return await ahead

    async def _lease(self, version: PolicyVersion) -> LeasedBatch | None:
        try:
            return await self._store.lease_batch(
                version,
                batch_size=self._batch_size,
                limits=self._limits,
                max_wait_s=self._lease_wait_s,
                learner_id=self._learner_id,
            )
        except TidegateError as error:
            if not error.retryable:
                raise
            self._context.stats.add(statistics.RETRIES)
            self._context.log.warning("call_failed", what="lease_batch", error=str(error))
            await self._context.drain.sleep(BACKOFF_S)
            return None
