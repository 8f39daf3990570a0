"""Leases batches from the store, one ahead when the budget allows, and rechecks their staleness before use."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from tidegate.catalogue import learner as statistics
from tidegate.core.errors import TidegateError
from tidegate.core.ids import PolicyVersion
from tidegate.core.staleness import LineageTree
from tidegate.learner.retrying import until_done
from tidegate.learner.state import OutdatedBatch, OutdatedTrajectory
from tidegate.learner.training_batch import TrainingBatch
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.trajectory_store import Dropped, TrajectoryStoreClient

BACKOFF_S = 0.2


class Leased(Protocol):
    """What the store answered."""

    @property
    def batch_id(self) -> str:
        """Its name at the store."""
        ...

    @property
    def waited_s(self) -> float:
        """Seconds for which the request waited at the store before the batch was leased."""
        ...


LeasedT = TypeVar("LeasedT", bound=Leased)


class Supply(Protocol[LeasedT]):
    """Where batches come from: whole trajectories, or units of replay."""

    async def request(
        self, version: PolicyVersion, *, learner_id: str, max_wait_s: float, held: Sequence[str]
    ) -> LeasedT | None:
        """A batch to update ``version`` with; None when none was ready in time, or one of ``held`` is lost."""
        ...

    def judge(
        self, leased: LeasedT, *, version: PolicyVersion, tree: LineageTree, now_s: float, held_s: float
    ) -> TrainingBatch | OutdatedBatch:
        """The second check of I1: every trajectory against the version that it is about to update.

        ``held_s``: seconds since the batch was leased, at most, which a wrong wall clock does not change.
        """
        ...


class BatchSource(Generic[LeasedT]):
    """At most one batch in training and one leased ahead; both end with a commit, or with ``close``.

    A batch is always leased for the version it will update, so the store judges it by the lag it is going to have.
    """

    def __init__(
        self,
        context: ServiceContext,
        store: TrajectoryStoreClient,
        supply: Supply[LeasedT],
        *,
        learner_id: str,
        lease_wait_s: float,
        uncommitted: Callable[[], Sequence[str]],
    ) -> None:
        """``lease_wait_s`` bounds one poll, and with it how long draining waits for a poll in flight.

        ``uncommitted``: batches that were trained and whose commit was not acknowledged.
        """
        self._context = context
        self._store = store
        self._supply = supply
        self._learner_id = learner_id
        self._lease_wait_s = lease_wait_s
        self._uncommitted = uncommitted
        self._ahead: tuple[PolicyVersion, asyncio.Task[LeasedT | None]] | None = None
        # Of the batch that was leased last, by the monotonic clock; there is at most one that is not judged.
        self._leased_s = 0.0
        # The newest batch that was given to the loop, until it is released or the next one is given.
        self._current = ""
        self._lost: frozenset[str] = frozenset()
        self.num_outdated = 0

    def held(self) -> list[str]:
        """Batches whose leases must not expire, at most four: uncommitted, in training and leased ahead."""
        ahead = self._ahead[1] if self._ahead is not None else None
        if ahead is None or not ahead.done() or ahead.cancelled() or ahead.exception() is not None:
            return self._in_training()
        leased = ahead.result()
        return [*self._in_training(), *([] if leased is None else [leased.batch_id])]

    def note_lost(self, batch_ids: frozenset[str]) -> None:
        """The store holds these no more: the one that was leased ahead is not trained."""
        self._lost = batch_ids

    def _in_training(self) -> list[str]:
        return list({*self._uncommitted(), *([self._current] if self._current else [])})

    async def next(
        self, version: PolicyVersion, tree: LineageTree
    ) -> TrainingBatch | OutdatedTrajectory | None:
        """A batch to update ``version`` with; None when none was ready within one poll.

        ``OutdatedTrajectory`` when the leased batch left the budget meanwhile; it was released.

        Raises:
            TidegateError: the store rejects this learner.
        """
        leased = await self._take(version)
        if leased is None:
            return None
        clock = self._context.clock
        held_s = clock.monotonic_s() - self._leased_s
        verdict = self._supply.judge(leased, version=version, tree=tree, now_s=clock.now_s(), held_s=held_s)
        if not isinstance(verdict, OutdatedBatch):
            self._current = leased.batch_id
            return verdict
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
            self._ahead = version, asyncio.create_task(self._lease(version), name="lease-ahead")

    async def release(self, batch_id: str, *, dropped: list[Dropped] | None = None) -> None:
        """Release a batch; ``dropped`` trajectories do not return to the store."""
        await until_done(
            self._context,
            lambda: self._store.release_batch(batch_id, dropped=dropped or ()),
            what="release_batch",
        )
        if batch_id == self._current:
            self._current = ""

    async def close(self) -> None:
        """Release the batch that was leased ahead."""
        if self._ahead is None:
            return
        with contextlib.suppress(TidegateError):  # opening the next lineage ends the lease
            leased = await self._ahead[1]
            if leased is not None:
                await self._store.release_batch(leased.batch_id)
        self._ahead = None

    async def _take(self, version: PolicyVersion) -> LeasedT | None:
        if self._ahead is None:
            return await self._lease(version)
        (leased_for, ahead), self._ahead = self._ahead, None
        leased = await ahead
        if leased is not None and leased.batch_id in self._lost:
            return await self._lease(version)
        if leased is None or leased_for == version:
            return leased
        # The update before it was refused. Kept, the store would answer the next request for its version with it again.
        await self.release(leased.batch_id)
        return await self._lease(version)

    async def _lease(self, version: PolicyVersion) -> LeasedT | None:
        clock = self._context.clock
        asked_s = clock.monotonic_s()
        try:
            leased = await self._supply.request(
                version,
                learner_id=self._learner_id,
                max_wait_s=self._lease_wait_s,
                held=self._in_training(),
            )
        except TidegateError as error:
            if not error.retryable:
                raise
            self._context.stats.add(statistics.RETRIES)
            self._context.log.warning("call_failed", what="lease_batch", error=str(error))
            await self._context.drain.sleep(BACKOFF_S)
            return None
        # All of the call's time that the request did not wait may be that of the answer, whose trajectories grew older.
        waited_s = 0.0 if leased is None else max(0.0, leased.waited_s)
        self._leased_s = min(clock.monotonic_s(), asked_s + waited_s)
        return leased
