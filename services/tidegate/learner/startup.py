"""Start of a learner: its first version comes from the newest checkpoint and the updates after it, or is fresh.

Either way it opens a lineage at the trajectory store, which ends the leases of an earlier learner, and publishes the
version that it starts from, so that actors serve it before the first batch.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable

import msgspec

from tidegate.catalogue import learner as statistics
from tidegate.core.errors import TidegateError
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Array, PolicySnapshot
from tidegate.core.staleness import LineageTree
from tidegate.learner.checkpoint import CheckpointFolder, FoundCheckpoint
from tidegate.learner.committing import StepCommitter
from tidegate.learner.optim.port import Trainer
from tidegate.learner.recovery import recover_updates
from tidegate.learner.retrying import until_done
from tidegate.learner.state import TrainingProgress, lineage_to_open
from tidegate.models.model_folder import base_digest
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.threads import WorkerThread
from tidegate.wire.clients.trajectory_store import TrajectoryStoreClient

# Long enough that two restores from one checkpoint never draw the same name (four digits would collide once in
# 65,536 pairs, and two lineages of one name would be confused).
TOKEN_BYTES = 4


class Start(msgspec.Struct, frozen=True, eq=False):
    """The start of a learner: its progress, the tree with its own lineage, and the restored checkpoint if any.

    ``policy`` is published, with ``base_digest`` (``PolicySnapshot``). ``num_recomputed``: updates since
    the checkpoint.
    """

    progress: TrainingProgress
    tree: LineageTree
    policy: dict[str, Array]
    base_digest: str
    learner_id: str
    restored_from: PolicyVersion | None
    num_recomputed: int


async def start(
    context: ServiceContext,
    trainer: Trainer,
    folder: CheckpointFolder,
    *,
    store: TrajectoryStoreClient,
    committer: StepCommitter,
    make_first_policy: Callable[[], None],
    thread: WorkerThread,
) -> Start:
    """Restore or start fresh, open a lineage, publish. ``thread``: the one that updates the trainer.

    Raises:
        ConflictError: another learner opened a lineage at the same time.
        CorruptionError: there are checkpoints and none is intact.
        StaleFolderError: the checkpoint is of another run, another network or adapters of another model.
    """
    settings = context.settings
    base = await asyncio.to_thread(
        base_digest, settings.policy.kind, path=settings.policy.path, lora_rank=settings.policy.lora.rank
    )
    found = await asyncio.to_thread(
        folder.newest, run=settings.run, policy_kind=settings.policy.kind, base_digest=base
    )
    if found is None:
        await asyncio.to_thread(make_first_policy)
        restored_from, progress, consumed, ancestors = None, None, (), ()
        num_recomputed = 0
    else:
        await _report_restore(context, found)
        await asyncio.to_thread(trainer.restore, found.checkpoint.policy, found.checkpoint.trainer)
        progress, consumed = found.checkpoint.progress, found.checkpoint.consumed
        ancestors = found.checkpoint.lineages if found.checkpoint.forked_from else ()
        restored_from = progress.version
        progress = await recover_updates(
            context, thread, trainer, store, progress, tiers=settings.response.tiers_in_force()
        )
        num_recomputed = progress.version.step - restored_from.step
    lineage = lineage_to_open(
        None if progress is None else progress.version, token=secrets.token_hex(TOKEN_BYTES)
    )
    learner_id = f"{context.instance}-{lineage.name}"
    tree, num_revived = await until_done(
        context,
        lambda: store.open_lineage(lineage, learner_id=learner_id, consumed=consumed, ancestors=ancestors),
        what="open_lineage",
    )
    version = PolicyVersion(lineage=lineage.name, step=lineage.fork_step)
    progress = (
        TrainingProgress(version=version)
        if progress is None
        else msgspec.structs.replace(progress, version=version)
    )
    policy = await thread.run(trainer.policy)
    snapshot = PolicySnapshot(version, policy, published_at_s=context.clock.now_s(), base_digest=base)
    await committer.publish(snapshot, tree, trace_parent=context.telemetry.root())
    context.log.info(
        "lineage_opened",
        version=str(version),
        restored_from=str(restored_from),
        recomputed=num_recomputed,
        revived=num_revived,
    )
    context.stats.set(statistics.REVIVED_TRAJECTORIES, num_revived)
    return Start(
        progress=progress,
        tree=tree,
        policy=policy,
        base_digest=base,
        learner_id=learner_id,
        restored_from=restored_from,
        num_recomputed=num_recomputed,
    )


async def _report_restore(context: ServiceContext, found: FoundCheckpoint) -> None:
    """Report the restored checkpoint, with a warning when newer ones are corrupt."""
    context.log.info(
        "checkpoint_restored", path=str(found.path), version=str(found.checkpoint.progress.version)
    )
    for problem in found.passed_over:
        context.log.error("checkpoint_corrupt", problem=problem, taken_instead=found.path.name)
        context.stats.add(statistics.CORRUPT_CHECKPOINTS)
        with contextlib.suppress(TidegateError):  # the log has it, too
            await context.bus.event(
                "checkpoint_corrupt", {"problem": problem, "taken_instead": found.path.name}
            )
