"""Renews the learner's leases, so that the store gives back only what a learner that went away had leased.

It runs on the event loop, beside the thread that computes: an update may take as long as it needs. Waits for time;
ends with the learner.
"""

import asyncio
from collections.abc import Callable, Sequence

from tidegate.catalogue import learner as statistics
from tidegate.core.errors import TidegateError
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.trajectory_store import TrajectoryStoreClient

# Three renewals may get lost before a lease ends.
RENEWALS_PER_TIMEOUT = 4.0
# Until the store has said how long a lease lasts, and while it is away.
RETRY_S = 1.0


class LeaseRenewal:
    """Tells the store once in a while which batches are held; knows which of them it lost."""

    def __init__(
        self,
        context: ServiceContext,
        store: TrajectoryStoreClient,
        *,
        learner_id: str,
        held: Callable[[], Sequence[str]],
        note_lost: Callable[[frozenset[str]], None],
    ) -> None:
        """``note_lost`` is told which batches of ``held`` the store does not hold for this learner any more."""
        self._context = context
        self._store = store
        self._learner_id = learner_id
        self._held = held
        self._note_lost = note_lost
        self._lost: frozenset[str] = frozenset()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Renew until ``stop``; a draining learner still commits what it trained."""
        self._task = asyncio.create_task(self._run(), name="lease-renewal")

    def check(self) -> None:
        """Raise why renewing ended.

        Raises:
            TidegateError: the store rejects this learner.
        """
        if self._task is not None and self._task.done():
            self._task.result()

    def stop(self) -> None:
        """Renew no more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            pause_s = await self._renew()
            await asyncio.sleep(pause_s)

    async def _renew(self) -> float:
        """One renewal; returns the seconds to the next one."""
        held = self._held()
        try:
            renewal = await self._store.renew_leases(held, learner_id=self._learner_id)
        except TidegateError as error:
            if not error.retryable:
                raise
            self._context.stats.add(statistics.RETRIES)
            self._context.log.warning("call_failed", what="renew_leases", error=str(error))
            return RETRY_S
        if found := renewal.lost - self._lost:
            self._context.log.warning("leases_lost", batches=sorted(found))
            self._note_lost(renewal.lost)
        self._lost = renewal.lost
        return renewal.lease_timeout_s / RENEWALS_PER_TIMEOUT
