"""Telling the store of trajectories that will never come, for as long as it takes it to hear."""

from collections.abc import Sequence

from tidegate.core.errors import TidegateError
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.trajectory_store import Dropped, TrajectoryStoreClient

BACKOFF_START_S = 0.1
BACKOFF_MAX_S = 2.0


async def settle_dropped(
    context: ServiceContext, store: TrajectoryStoreClient, dropped: Sequence[Dropped], *, task_id: str
) -> bool:
    """Make trajectories of a task terminal, however long the store is away; False when draining came first.

    Raises:
        TidegateError: the store refuses them, which repeating cannot mend.
    """
    backoff_s = BACKOFF_START_S
    while dropped:
        try:
            await store.settle(dropped)
            break
        except TidegateError as error:
            if not error.retryable:
                raise
            context.stats.add("settle_retries_total")
            context.log.warning("settle_waits", task_id=task_id, error=str(error))
        if await context.drain.sleep(backoff_s):
            return False
        backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)
    return True
