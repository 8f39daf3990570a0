"""Start of a learner: its first version comes from the newest checkpoint and the updates after it, or is fresh.

A learner that was rolled back starts from the checkpoint that it goes back to, without the updates after it.

Either way it opens a lineage at the trajectory store, which ends the leases of an earlier learner, and publishes the
version that it starts from, so that actors serve it before the first batch.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable

import msgspec

from tidegate.catalogue import learner as statistics
from tidegate.core.errors import CorruptionError, NotFoundError, TidegateError
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Array, PolicySnapshot
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.learner.checkpoint import CheckpointFolder, FoundCheckpoint
from tidegate.learner.committing import StepCommitter
from tidegate.learner.optim.port import Trainer
from tidegate.learner.recovery import recover_updates
from tidegate.learner.retrying import until_done
from tidegate.learner.rollback import Rollback, RollbackFile
from tidegate.learner.state import TrainingProgress, lineage_to_open
from tidegate.learner.warmup_record import WARMED_UP, WarmupRecord
from tidegate.models.model_folder import base_digest
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.threads import WorkerThread
from tidegate.wire.clients.trajectory_store import TrajectoryStoreClient

# Long enough that two restores from one checkpoint never draw the same name (four digits would collide once in
# 65,536 pairs, and two lineages of one name would be confused).
TOKEN_BYTES = 4
# The event by which others learn of it: the best version is none of a branch that was given up.
ROLLED_BACK = "rolled_back"


class Start(msgspec.Struct, frozen=True, eq=False):
    """The start of a learner: its progress, the tree with its own lineage, and the restored checkpoint if any.

    ``policy`` is published, with ``base_digest`` (``PolicySnapshot``), at ``published_at_s``. ``num_recomputed``:
    updates since the checkpoint. ``rollback``: the one that this start finished.
    """

    progress: TrainingProgress
    tree: LineageTree
    policy: dict[str, Array]
    base_digest: str
    published_at_s: float
    learner_id: str
    restored_from: PolicyVersion | None
    num_recomputed: int
    rollback: Rollback | None


class _Origin(msgspec.Struct, frozen=True, eq=False):
    """What a learner starts from: a checkpoint, and the rollback that leads to it if there is one."""

    found: FoundCheckpoint | None
    rollback: Rollback | None


async def start(
    context: ServiceContext,
    trainer: Trainer,
    folder: CheckpointFolder,
    rollback_file: RollbackFile,
    *,
    store: TrajectoryStoreClient,
    committer: StepCommitter,
    make_first_policy: Callable[[], WarmupRecord | None],
    thread: WorkerThread,
) -> Start:
    """Restore or start fresh, open a lineage, publish. ``thread``: the one that updates the trainer.

    A rollback that ``rollback_file`` holds is finished by it.

    Raises:
        ConflictError: another learner opened a lineage at the same time.
        CorruptionError: there are checkpoints and none is intact.
        StaleFolderError: the checkpoint is of another run, another network or adapters of another model.
    """
    settings = context.settings
    base = await asyncio.to_thread(
        base_digest, settings.policy.kind, path=settings.policy.path, lora_rank=settings.policy.lora.rank
    )
    origin = await _origin(context, folder, rollback_file, base_digest=base)
    restored_from: PolicyVersion | None = None
    progress: TrainingProgress | None = None
    warmed: WarmupRecord | None = None
    if origin.found is None:
        warmed = await asyncio.to_thread(make_first_policy)
    else:
        await _report_restore(context, origin.found)
        checkpoint = origin.found.checkpoint
        await asyncio.to_thread(trainer.restore, checkpoint.policy, checkpoint.trainer)
        progress = checkpoint.progress
        restored_from = progress.version
        if origin.rollback is None:
            progress = await recover_updates(
                context, thread, trainer, store, progress, tiers=settings.response.tiers_in_force()
            )
    lineage = lineage_to_open(
        None if progress is None else progress.version,
        token=secrets.token_hex(TOKEN_BYTES),
        abandoned=None if origin.rollback is None else origin.rollback.head,
    )
    learner_id = f"{context.instance}-{lineage.name}"
    tree, num_revived = await _open_lineage(
        context, store, lineage, origin, learner_id=learner_id, rollback_file=rollback_file
    )
    version = PolicyVersion(lineage=lineage.name, step=lineage.fork_step)
    progress = msgspec.structs.replace(progress or TrainingProgress(version=version), version=version)
    num_recomputed = 0 if restored_from is None else version.step - restored_from.step
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
    await _report_warmup(context, warmed, version)
    if origin.found is not None and origin.rollback is not None:
        await asyncio.to_thread(folder.delete_after, origin.found.path)
        await _report_rollback(context, origin.rollback, version)
        await asyncio.to_thread(rollback_file.remove)
    return Start(
        progress=progress,
        tree=tree,
        policy=policy,
        base_digest=base,
        published_at_s=snapshot.published_at_s,
        learner_id=learner_id,
        restored_from=restored_from,
        num_recomputed=num_recomputed,
        rollback=origin.rollback,
    )


async def _origin(
    context: ServiceContext, folder: CheckpointFolder, rollback_file: RollbackFile, *, base_digest: str
) -> _Origin:
    """The checkpoint of the rollback that is to be finished, else the newest one.

    A rollback whose checkpoint was lost since it was accepted is given up: training goes on from the newest one.
    """
    run, policy_kind = context.settings.run, context.settings.policy.kind
    rollback: Rollback | None = None
    try:
        rollback = await asyncio.to_thread(rollback_file.read)
        if rollback is not None:
            held = await asyncio.to_thread(
                folder.holding, rollback.target, run=run, policy_kind=policy_kind, base_digest=base_digest
            )
            return _Origin(held, rollback)
    except (CorruptionError, NotFoundError) as error:
        await _give_up(context, rollback_file, rollback, error)
    newest = await asyncio.to_thread(folder.newest, run=run, policy_kind=policy_kind, base_digest=base_digest)
    return _Origin(newest, None)


async def _open_lineage(
    context: ServiceContext,
    store: TrajectoryStoreClient,
    lineage: Lineage,
    origin: _Origin,
    *,
    learner_id: str,
    rollback_file: RollbackFile,
) -> tuple[LineageTree, int]:
    """Open it; returns the tree with it, and how many trajectories were revived."""
    checkpoint = None if origin.found is None else origin.found.checkpoint
    consumed = () if checkpoint is None else checkpoint.consumed
    ancestors = () if checkpoint is None or not checkpoint.forked_from else checkpoint.lineages
    try:
        return await until_done(
            context,
            lambda: store.open_lineage(
                lineage, learner_id=learner_id, consumed=consumed, ancestors=ancestors
            ),
            what="open_lineage",
        )
    except TidegateError as error:
        # Nothing was opened: the next start goes on from the newest checkpoint, instead of failing here for ever.
        if origin.rollback is not None and not error.retryable:
            await _give_up(context, rollback_file, origin.rollback, error)
        raise


async def _give_up(
    context: ServiceContext, rollback_file: RollbackFile, rollback: Rollback | None, error: TidegateError
) -> None:
    context.log.error(
        "rollback_given_up", to="" if rollback is None else str(rollback.target), error=str(error)
    )
    await asyncio.to_thread(rollback_file.remove)


async def _report_rollback(context: ServiceContext, rollback: Rollback, version: PolicyVersion) -> None:
    """Say what does not count any more, and who wanted it."""
    fields = {
        "head": str(rollback.head),
        "target": str(rollback.target),
        "version": str(version),
        "reason": rollback.reason,
        "by": rollback.by,
    }
    context.log.warning("rolled_back", **fields)
    with contextlib.suppress(TidegateError):  # the log has it, too
        await context.bus.event(ROLLED_BACK, fields)


async def _report_warmup(
    context: ServiceContext, warmed: WarmupRecord | None, version: PolicyVersion
) -> None:
    """Say what the first version was warmed up by, once it is published; nothing without a warm-up."""
    if warmed is not None:
        with contextlib.suppress(TidegateError):  # the log has it, too
            await context.bus.event(WARMED_UP, {"version": str(version), **msgspec.to_builtins(warmed)})


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
