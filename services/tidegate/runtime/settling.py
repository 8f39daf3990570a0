"""Telling the store of trajectories that will never come, for as long as it takes it to hear."""

from collections.abc import Sequence

from tidegate.runtime.retrying import Backoff, DrainingError, FailedAttempt, StopWhenDraining, retry
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.trajectory_store import Dropped, TrajectoryStoreClient

BACKOFF = Backoff(start_s=0.1, max_s=2.0)


async def settle_dropped(
    context: ServiceContext, store: TrajectoryStoreClient, dropped: Sequence[Dropped], *, task_id: str
) -> bool:
    """Make trajectories of a task terminal, however long the store is away; False when draining came first.

    Raises:
        TidegateError: the store refuses them, which repeating cannot mend.
    """
    if not dropped:
        return True

    def note(failed: FailedAttempt) -> None:
        context.stats.add("settle_retries_total")
        context.log.warning("settle_waits", task_id=task_id, error=str(failed.error))

    try:
        await retry(
            lambda: store.settle(dropped), BACKOFF, draining=StopWhenDraining(context.drain), on_retry=note
        )
    except DrainingError:
        return False
    return True
