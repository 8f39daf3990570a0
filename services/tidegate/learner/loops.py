"""The learner's loop: lease, recheck, update, commit and publish. A rollback starts it again, in the same process.

At most one step ahead: while a batch is trained the next one is leased (where the budget allows any lag), and the
previous step is being acknowledged.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.catalogue import learner as statistics
from tidegate.core.audit import LearnerTotals
from tidegate.core.errors import RecordError, TidegateError, UnavailableError
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Array, PolicySnapshot
from tidegate.core.response import Response, respond
from tidegate.core.staleness import LineageTree
from tidegate.learner.batches import BatchSource, Supply
from tidegate.learner.checkpoint import Checkpoint, CheckpointFolder, learner_totals
from tidegate.learner.checkpoint_writer import CheckpointWriter
from tidegate.learner.committing import StepCommitter
from tidegate.learner.config import LearnerConfig
from tidegate.learner.guarded_update import GuardedTrainer, PoisonedBatch
from tidegate.learner.lease_renewal import LeaseRenewal
from tidegate.learner.optim.port import Trainer
from tidegate.learner.optim.replay_port import priorities_of
from tidegate.learner.optim.token_gaps import TokenGaps, token_gaps_of
from tidegate.learner.reporting import Step, StepReporter
from tidegate.learner.retrying import retryable_suppressed
from tidegate.learner.rollback import ROLLBACK_FILE, Rollback, RollbackFile, RollbackRequests
from tidegate.learner.startup import start
from tidegate.learner.state import OutdatedTrajectory, TrainingProgress, next_version
from tidegate.learner.training_batch import TrainingBatch
from tidegate.learner.update_speed import UpdateSpeed
from tidegate.learner.warmup_record import WarmupRecord
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.telemetry import is_sampled
from tidegate.runtime.threads import WorkerThread
from tidegate.wire.clients.trajectory_store import Dropped, TrajectoryStoreClient
from tidegate.wire.clients.weight_distribution import WeightDistributionClient
from tidegate.wire.subjects import HEADER_TRAJECTORY_IDS


class _Updated(msgspec.Struct, frozen=True, eq=False):
    """What an update gives."""

    metrics: dict[str, float]
    policy: dict[str, Array]
    priorities: NDArray[np.float32] | None
    gaps: list[TokenGaps]


class Learner:
    """Owns the trainer; serves the loop and the servicer. Does nothing before ``run``."""

    def __init__(
        self,
        context: ServiceContext,
        config: LearnerConfig,
        *,
        trainer: Trainer,
        make_supply: Callable[[TrajectoryStoreClient], Supply[Any]],
        folder: CheckpointFolder,
        reporter: StepReporter,
        make_first_policy: Callable[[], WarmupRecord | None],
        speed: UpdateSpeed,
    ) -> None:
        self._context = context
        self._config = config
        self._trainer = trainer
        self._guarded = GuardedTrainer(trainer)
        self._make_supply = make_supply
        self._folder = folder
        self._reporter = reporter
        self._make_first_policy = make_first_policy
        self._speed = speed
        self._store = TrajectoryStoreClient(context.channel("trajectory_store"))
        self._weights = WeightDistributionClient(context.channel("weight_distribution"))
        self._committer = StepCommitter(context, self._store, self._weights)
        # A thread of its own: the event loop serves calls and heartbeats while torch computes.
        self._thread = WorkerThread("trainer")
        self._progress: TrainingProgress | None = None
        self._tree = LineageTree()
        self._policy: dict[str, Array] = {}
        self._base_digest = ""
        self._published_at_s = 0.0
        self._tiers = context.settings.response.tiers_in_force()
        self._steps_since_checkpoint = 0
        self._updating = False
        self._checkpoint_writer = CheckpointWriter(context, folder, self._store)
        self._rollback_file = RollbackFile(context.data_dir / ROLLBACK_FILE)
        self._rollbacks = RollbackRequests(folder, self._rollback_file, context.clock)

    @property
    def progress(self) -> TrainingProgress:
        """The progress of training.

        Raises:
            UnavailableError: training has not started.
        """
        if self._progress is None:
            raise UnavailableError("The learner is still starting", fix="retry in a few seconds")
        return self._progress

    @property
    def checkpointed(self) -> PolicyVersion | None:
        """The newest version that a checkpoint holds."""
        return self._checkpoint_writer.newest

    def note_standby(self, known: PolicyVersion | None) -> None:
        """A learner that stands by asks for a newer checkpoint than the one with ``known``."""
        now_s = self._context.clock.monotonic_s()
        self._checkpoint_writer.hold.asked(known, newest=self.checkpointed, now_s=now_s)

    def kept(self) -> list[PolicyVersion]:
        """The versions that the kept checkpoints hold, oldest first."""
        return self._folder.versions()

    def sampled_units(self) -> LearnerTotals:
        """The learner's side of the audit of replay, without batches whose commit may be on its way.

        Raises:
            UnavailableError: training has not started.
        """
        return learner_totals(self.progress, self._committer.unacknowledged())

    def metrics(self) -> dict[str, float]:
        """The metrics of the newest step."""
        return dict(self._reporter.newest)

    async def checkpoint(self) -> PolicyVersion:
        """Request a checkpoint at the next step boundary; returns its version.

        Raises:
            UnavailableError: training has not started, or the learner is draining.
        """
        if self._progress is None or self._context.drain.requested:
            raise UnavailableError("The learner is starting or stopping, and writes no checkpoint on request")
        return await self._checkpoint_writer.request()

    async def rollback(self, target: PolicyVersion, *, reason: str, by: str) -> Rollback:
        """Request a rollback at the next step boundary; returns once it is durable. See ``RollbackRequests``.

        Raises:
            UnavailableError: training has not started, or the learner is draining.
            NotFoundError: no kept checkpoint holds the version.
        """
        if self._progress is None or self._context.drain.requested:
            raise UnavailableError("The learner is starting or stopping, and goes back to no version now")
        return await self._rollbacks.request(target, reason=reason, by=by)

    def complete(self, *, reason: str) -> None:
        """Drain as the learner of a complete run, whose process is not to be started again."""
        if not self._context.drain.completed:
            self._context.log.info("run_completed", reason=reason)
        self._context.drain.complete()

    async def run(self) -> None:
        """Start, train until draining, write a last checkpoint.

        Raises:
            ConflictError: another learner took over.
            TidegateError: a service rejects this learner, or the run folder does not fit.
        """
        try:
            while await self._run():
                # What the abandoned branch reported is no statement about the version that training goes on from.
                self._reporter.forget()
        except TidegateError as error:
            # A peer that is away or busy, or a credential that was rotated: a restore repeats what is unacknowledged.
            if not (error.retryable and self._context.drain.requested):
                raise
            self._context.log.warning(
                "learner_stopped_unacknowledged", kept_in="checkpoint", error=str(error)
            )
        finally:
            self._checkpoint_writer.close()
            self._rollbacks.close()
            self._thread.close()

    async def _run(self) -> bool:
        """Start, and train until draining or until a rollback was accepted, which the next start carries out.

        Returns whether one was.
        """
        started = await start(
            self._context,
            self._trainer,
            self._folder,
            self._rollback_file,
            store=self._store,
            committer=self._committer,
            make_first_policy=self._make_first_policy,
            thread=self._thread,
        )
        self._progress, self._tree = started.progress, started.tree
        self._policy, self._base_digest = started.policy, started.base_digest
        self._published_at_s = started.published_at_s
        self._checkpoint_writer.newest = started.restored_from
        self._steps_since_checkpoint = started.num_recomputed
        self._reporter.progress(started.progress)
        if started.rollback is not None:
            self._reporter.published(started.progress.version)
            self._context.stats.label(statistics.CHECKPOINTED, str(started.restored_from))
        if started.restored_from is None:
            # Beside the first rollouts: updates are recomputed after a kill from a checkpoint.
            await self._write_checkpoint()
        batches = BatchSource(
            self._context,
            self._store,
            self._make_supply(self._store),
            learner_id=started.learner_id,
            lease_wait_s=self._config.lease_wait_s,
            uncommitted=self._committer.uncommitted,
        )
        renewal = LeaseRenewal(
            self._context,
            self._store,
            learner_id=started.learner_id,
            held=batches.held,
            note_lost=batches.note_lost,
        )
        renewal.start()
        try:
            goes_back = await self._train_until_drained(batches, renewal)
            await self._committer.wait()
            await batches.close()
        finally:
            renewal.stop()
        return goes_back

    async def _train_until_drained(self, batches: BatchSource[Any], renewal: LeaseRenewal) -> bool:
        goes_back = False
        try:
            goes_back = await self._train(batches, renewal)
        finally:
            # One more checkpoint could delete the one that a rollback goes to.
            if self._context.drain.requested and not goes_back:
                await self._checkpoint_writer.wait()
                wanted = self._steps_since_checkpoint or self._checkpoint_writer.requested
                # An interrupted update left the trainer between two versions: the previous checkpoint is valid.
                if not self._updating and (wanted or self._checkpoint_writer.failed):
                    await self._write_checkpoint()
                    await self._checkpoint_writer.wait()
        return goes_back

    async def _train(self, batches: BatchSource[Any], renewal: LeaseRenewal) -> bool:
        """Train until draining; returns whether it ended before that, because a rollback was accepted."""
        clock, drain = self._context.clock, self._context.drain
        trained_at_s = checked_at_s = clock.monotonic_s()
        while not drain.requested:
            if self._rollbacks.waiting:
                await self._checkpoint_writer.wait()
                if await self._rollbacks.decide(self.progress.version, self._tree):
                    return True
            if self._checkpoint_writer.requested:
                await self._write_checkpoint()
            await self._committer.check()
            renewal.check()
            asked_at_s = clock.monotonic_s()
            batch = await batches.next(self.progress.version, self._tree)
            now_s = clock.monotonic_s()
            self._reporter.waited(
                now_s - asked_at_s, cause="stale" if isinstance(batch, OutdatedTrajectory) else "empty"
            )
            match batch:
                case OutdatedTrajectory():
                    self._reporter.outdated(batch)
                case None if now_s - checked_at_s >= self._config.republish_after_s:
                    await self._publish_if_missing()
                    checked_at_s = now_s
                case None:
                    pass
                case _ if drain.requested:
                    await batches.release(batch.batch_id)
                case _:
                    await self._step(batches, batch, wait_s=now_s - trained_at_s)
                    trained_at_s = checked_at_s = clock.monotonic_s()
        return False

    async def _step(self, batches: BatchSource[Any], batch: TrainingBatch, *, wait_s: float) -> None:
        """One update, from a rechecked batch to the start of its commit."""
        context = self._context
        before = self.progress.version
        if context.live.staleness.max_lag > 0 and self._config.prefetch:
            batches.prefetch(next_version(before))
        response = respond(self._tiers, batch.lags)
        started_s = context.clock.monotonic_s()
        self._updating = True
        try:
            with self._reporter.updating():
                updated = await self._thread.run(
                    partial(self._update, batch, number=before.step + 1, response=response)
                )
        except RecordError as error:
            self._updating = False
            await self._refuse(batches, batch, error)
            return
        self._updating = False
        if isinstance(updated, PoisonedBatch):
            await self._drop_poisoned(batches, batch, updated)
            return
        finished_at_s, took_s = context.clock.now_s(), context.clock.monotonic_s() - started_s
        self._progress = batch.progress_after(self.progress)
        self._policy, self._published_at_s = updated.policy, finished_at_s
        step = Step(
            progress=self._progress,
            batch=batch,
            gaps=updated.gaps,
            metrics={
                **updated.metrics,
                **self._speed.figures(updated.metrics, seconds=took_s),
            },
            response=response,
            started_at_s=finished_at_s - took_s,  # a wall clock that is set meanwhile changes no duration
            finished_at_s=finished_at_s,
            wait_s=wait_s,
            # Links a trajectory's trace to the update that it was part of.
            trace_parent=context.telemetry.root(
                wanted=any(is_sampled(trajectory.trace_parent) for trajectory in batch.trajectories)
            ),
        )
        self._reporter.trained(step)
        self._steps_since_checkpoint += 1
        if self._checkpoint_writer.newest is None:
            await self._checkpoint_writer.wait()  # no update is committed that a restore could not recompute
        # From the newest that is durable: one that cannot be written does not count.
        newest = self._checkpoint_writer.newest
        behind = self.progress.version.step - (newest.step if newest is not None else 0)
        context.stats.set(statistics.CHECKPOINT_BEHIND, behind / self._config.checkpoint_every_steps)
        committing_since_s = context.clock.monotonic_s()
        await self._committer.begin(
            batch.trained(before, updated.priorities),
            self._snapshot(),
            self._tree,
            trace_parent=step.trace_parent,
            done=partial(self._reporter.committed, step),
        )
        self._reporter.waited(context.clock.monotonic_s() - committing_since_s, cause="weights")
        if self._steps_since_checkpoint >= self._config.checkpoint_every_steps:
            await self._write_checkpoint()
        elif context.clock.monotonic_s() >= self._checkpoint_writer.affordable_at_s:
            await self._write_checkpoint(early=True)

    def _update(self, batch: TrainingBatch, *, number: int, response: Response) -> _Updated | PoisonedBatch:
        trainer = self._trainer
        metrics = self._guarded.update(
            batch.work, batch.parts, policy=self._policy, number=number, response=response
        )
        if isinstance(metrics, PoisonedBatch):
            return metrics
        return _Updated(metrics, trainer.policy(), priorities_of(trainer), token_gaps_of(trainer))

    async def _drop_poisoned(
        self, batches: BatchSource[Any], batch: TrainingBatch, poisoned: PoisonedBatch
    ) -> None:
        """Drop the trajectories that made an update not finite; it was undone, and the others are leased again."""
        context = self._context
        context.stats.add(statistics.INVALID_BATCHES)
        context.stats.label(statistics.BATCH_REFUSAL, poisoned.why)
        dropped: list[Dropped] = []
        for culprit in poisoned.culprits:
            detail = f"{poisoned.why}. {culprit}"
            dropped.append(Dropped(culprit.trajectory_id, reason="poisoned", detail=detail))
            context.log.error(
                "trajectory_poisoned",
                batch=batch.batch_id,
                why=poisoned.why,
                trajectory=culprit.trajectory_id,
                actor=culprit.actor_id,
                tensor=culprit.found.tensor,
                position=list(culprit.found.position),
                value=culprit.found.value,
            )
            with contextlib.suppress(TidegateError):  # log and ledger have it, too
                await context.bus.quarantine(
                    context.service,
                    msgspec.json.encode(culprit),
                    reason=detail,
                    headers={HEADER_TRAJECTORY_IDS: culprit.trajectory_id},
                )
        await batches.release(batch.batch_id, dropped=dropped)

    async def _refuse(self, batches: BatchSource[Any], batch: TrainingBatch, error: RecordError) -> None:
        """Drop the invalid trajectories, so that the same batch is not leased again forever."""
        parts = batch.parts()
        invalid = [trajectory_id for trajectory_id, work in parts if not await self._fits(work)]
        self._context.log.error("batch_invalid", batch=batch.batch_id, error=str(error))
        self._context.stats.add(statistics.INVALID_BATCHES)
        self._context.stats.label(statistics.BATCH_REFUSAL, str(error))
        await batches.release(
            batch.batch_id,
            dropped=[
                Dropped(trajectory_id=trajectory_id, reason="invalid", detail=str(error))
                for trajectory_id in invalid or [trajectory_id for trajectory_id, _ in parts]
            ],
        )

    async def _fits(self, work: Any) -> bool:
        try:
            await self._thread.run(partial(self._trainer.prepare, work))
        except RecordError:
            return False
        return True

    def _snapshot(self) -> PolicySnapshot:
        return PolicySnapshot(
            self.progress.version,
            self._policy,
            published_at_s=self._published_at_s,
            base_digest=self._base_digest,
        )

    async def _publish_if_missing(self) -> None:
        """While no batch arrives: publish the newest version again if it is missing (after a lost disk)."""
        await self._committer.wait()
        with retryable_suppressed():  # checked again soon
            head, kept = await self._weights.head()
            version = self.progress.version
            if head is None or head.version != version or version not in kept:
                self._context.log.warning("policy_published_again", version=str(version))
                await self._weights.publish(self._snapshot(), self._tree)

    async def _write_checkpoint(self, *, early: bool = False) -> None:
        """Start to write a checkpoint; training continues meanwhile. An early one changes nothing about the next."""
        if not early:
            self._steps_since_checkpoint = 0
        started_s = self._context.clock.monotonic_s()
        # In the trainer's thread: it copies all moments, and no update runs meanwhile.
        trainer_state = await self._thread.run(self._trainer.state)
        await self._checkpoint_writer.begin(
            Checkpoint(
                run=self._context.settings.run,
                policy_kind=self._context.settings.policy.kind,
                progress=self.progress,
                lineages=tuple(self._tree.lineages.values()),
                consumed=self._committer.unacknowledged(),
                policy=self._policy,
                trainer=trainer_state,
                written_at_s=self._context.clock.now_s(),
                base_digest=self._base_digest,
            ),
            copied_in_s=self._context.clock.monotonic_s() - started_s,
            early=early,
        )
