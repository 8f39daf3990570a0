"""A restored learner recomputes the updates since its checkpoint, from the batches that the store has.

They were judged, trained and committed once, so nothing is counted again: the restored version is the last one that was
committed, and no trajectory becomes stale by the restore. Without this, what was trained since the checkpoint is made
available again and trained again, as far as its budget allows.
"""

from collections.abc import Sequence
from functools import partial

import msgspec

from tidegate.catalogue import learner as statistics
from tidegate.core.batching import training_order
from tidegate.core.errors import TidegateError, UnavailableError
from tidegate.core.records import Trajectory
from tidegate.core.response import Tier, respond
from tidegate.learner.optim.gradients import not_finite
from tidegate.learner.optim.port import Trainer
from tidegate.learner.retrying import until_done
from tidegate.learner.state import TrainingProgress
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.threads import WorkerThread
from tidegate.wire.clients.trajectory_store import TrainedUpdate, TrajectoryStoreClient


async def recover_updates(
    context: ServiceContext,
    thread: WorkerThread,
    trainer: Trainer,
    store: TrajectoryStoreClient,
    progress: TrainingProgress,
    *,
    tiers: tuple[Tier, ...],
) -> TrainingProgress:
    """Recompute every committed update after ``progress``, in the trainer's ``thread``; returns where that ends.

    Ends early where a payload is gone and where the store refuses: the other trajectories become available again when
    the learner opens its lineage.

    Raises:
        UnavailableError: the learner drains. It must not open a lineage, which would give up the updates that are left.
        TidegateError: an update is not finite now.
    """
    while True:
        if context.drain.requested:
            raise UnavailableError(
                "The learner was stopped while it recomputed updates",
                why=f"it had come to {progress.version}",
                fix="nothing: the next start recomputes them",
            )
        try:
            update = await until_done(
                context, partial(store.read_update, progress.version), what="read_update"
            )
        except TidegateError as error:
            if error.retryable:  # only a learner that drains stops asking
                raise
            context.log.warning("updates_not_recomputed", since=str(progress.version), error=str(error))
            break
        if update is None:
            break
        await thread.run(partial(_recompute_finite, trainer, update, tiers))
        context.stats.add(statistics.UPDATES_RECOMPUTED)
        progress = msgspec.structs.replace(
            progress.after(update.trajectories),
            version=msgspec.structs.replace(update.version, step=update.version.step + 1),
        )
    return progress


def recompute(
    trainer: Trainer,
    trajectories: Sequence[Trajectory],
    lags: Sequence[int],
    *,
    number: int,
    tiers: tuple[Tier, ...],
) -> dict[str, float]:
    """Make the ``number``-th update of the ancestry from a kept batch, in the learner's order; returns its metrics.

    Raises:
        RecordError: a trajectory does not fit the policy.
    """
    order = training_order(trajectories)
    return trainer.update(
        trainer.prepare([trajectories[index] for index in order]),
        number=number,
        response=respond(tiers, [lags[index] for index in order]),
    )


def _recompute_finite(trainer: Trainer, update: TrainedUpdate, tiers: tuple[Tier, ...]) -> None:
    metrics = recompute(
        trainer, update.trajectories, update.lags, number=update.version.step + 1, tiers=tiers
    )
    wrong = not_finite(metrics)
    if wrong:
        raise TidegateError(
            f"The recomputed update of {update.version} is not finite: {', '.join(wrong)}",
            why="it was finite when it was committed, with other settings, on another machine or another device",
            fix="restore the settings of the run, or remove the newest checkpoint to start from the one before",
        )
