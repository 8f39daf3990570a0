"""Reports to the store of trajectories that will never arrive, repeated until it has them."""

from collections.abc import Sequence

from tidegate.catalogue import publishing
from tidegate.runtime.retrying import Backoff, DrainingError, FailedAttempt, StopWhenDraining, retry
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.trajectory_store import Dropped, TrajectoryStoreClient

BACKOFF = Backoff(start_s=0.1, max_s=2.0)


async def report_dropped(
    context: ServiceContext,
    store: TrajectoryStoreClient,
    dropped: Sequence[Dropped],
    *,
    task_id: str,
    proof: str,
) -> bool:
    """Make trajectories of a task terminal; False if draining began while the store was away.

    ``proof``: that this service was given the task (``wire.task_proof``).

    Raises:
        TidegateError: the store refuses them.
    """
    if not dropped:
        return True

    def note(failed: FailedAttempt) -> None:
        context.stats.add(publishing.DROP_REPORT_RETRIES)
        context.log.warning("drop_report_waits", task_id=task_id, error=str(failed.error))

    try:
        await retry(
            lambda: store.drop_unarrived(dropped, proof=proof),
            BACKOFF,
            draining=StopWhenDraining(context.drain),
            on_retry=note,
        )
    except DrainingError:
        return False
    return True
