"""The learner's loop: lease, judge, update, commit and publish, again.

One step ahead at most: while a batch is trained the one after it is leased (where the budget allows any lag), and the
step before it is being acknowledged.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial

from tidegate.catalogue import learner as statistics
from tidegate.core.errors import RecordError, TidegateError, UnavailableError
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Array, PolicySnapshot, Trajectory
from tidegate.core.response import Response, respond
from tidegate.core.staleness import LineageTree
from tidegate.learner.batches import BatchSource, ReadyBatch
from tidegate.learner.checkpoint import Checkpoint, CheckpointFolder
from tidegate.learner.checkpointing import Checkpointing
from tidegate.learner.committing import StepCommitter
from tidegate.learner.config import LearnerConfig
from tidegate.learner.optim.port import Trainer
from tidegate.learner.reporting import Step, StepReporter
from tidegate.learner.startup import start
from tidegate.learner.state import OutdatedTrajectory, TrainingProgress, next_version
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.telemetry import is_sampled
from tidegate.runtime.threads import WorkerThread
from tidegate.wire.clients.trajectory_store import ConsumedBatch, Consumption, Dropped, TrajectoryStoreClient
from tidegate.wire.clients.weight_distribution import WeightDistributionClient


class Learner:
    """Owns the trainer; the loop and the servicer act through it."""

    def __init__(
        self,
        context: ServiceContext,
        config: LearnerConfig,
        *,
        trainer: Trainer,
        folder: CheckpointFolder,
        reporter: StepReporter,
        make_first_policy: Callable[[], None],
    ) -> None:
        """Nothing is read or called before ``run``."""
        self._context = context
        self._config = config
        self._trainer = trainer
        self._folder = folder
        self._reporter = reporter
        self._make_first_policy = make_first_policy
        self._store = TrajectoryStoreClient(context.channel("trajectory_store"))
        self._weights = WeightDistributionClient(context.channel("weight_distribution"))
        self._committer = StepCommitter(context, self._store, self._weights)
        # One thread of its own: the event loop keeps its calls and heartbeats going while torch computes.
        self._thread = WorkerThread("trainer")
        self._progress: TrainingProgress | None = None
        self._tree = LineageTree()
        self._policy: dict[str, Array] = {}
        self._base_digest = ""
        self._published_at_s = 0.0
        self._tiers = context.settings.response.tiers_in_force()
        self._steps_since_checkpoint = 0
        self._updating = False
        self._checkpointing = Checkpointing(context, folder, self._store)

    @property
    def progress(self) -> TrainingProgress:
        """Where training stands.

        Raises:
            UnavailableError: it has not begun.
        """
        if self._progress is None:
            raise UnavailableError("The learner is still starting", fix="ask again in a few seconds")
        return self._progress

    @property
    def checkpointed(self) -> PolicyVersion | None:
        """The newest version that a checkpoint holds."""
        return self._checkpointing.newest

    def metrics(self) -> dict[str, float]:
        """What the newest step measured."""
        return dict(self._reporter.newest)

    async def checkpoint(self) -> PolicyVersion:
        """Have a checkpoint written at the next step boundary; returns its version.

        Raises:
            UnavailableError: training has not begun, or ends.
        """
        if self._progress is None or self._context.drain.requested:
            raise UnavailableError("The learner is starting or stopping, and writes no checkpoint on request")
        return await self._checkpointing.request()

    async def run(self) -> None:
        """Start, train until draining, leave a checkpoint.

        Raises:
            ConflictError: another learner took over.
            TidegateError: a service refuses this learner, or the run folder does not fit.
        """
        try:
            await self._run()
        except UnavailableError:
            if not self._context.drain.requested:
                raise
            self._context.log.warning("learner_stopped_unacknowledged", kept_in="checkpoint")
        finally:
            self._checkpointing.close()
            self._thread.close()

    async def _run(self) -> None:
        begun = await start(
            self._context,
            self._trainer,
            self._folder,
            store=self._store,
            committer=self._committer,
            make_first_policy=self._make_first_policy,
        )
        self._progress, self._tree = begun.progress, begun.tree
        self._policy, self._base_digest = begun.policy, begun.base_digest
        self._checkpointing.newest = begun.restored_from
        self._reporter.progress(begun.progress)
        batches = BatchSource(
            self._context,
            self._store,
            learner_id=begun.learner_id,
            lease_wait_s=self._config.lease_wait_s,
        )
        try:
            await self._train(batches)
        finally:
            if self._context.drain.requested:
                # An update that broke off left the trainer between two versions: the checkpoint before it holds.
                if not self._updating and (self._steps_since_checkpoint or self._checkpointing.requested):
                    await self._write_checkpoint()
                await self._checkpointing.wait()
        await self._committer.wait()
        await batches.close()

    async def _train(self, batches: BatchSource) -> None:
        clock, drain = self._context.clock, self._context.drain
        trained_at_s = checked_at_s = clock.monotonic_s()
        while not drain.requested:
            if self._checkpointing.requested:
                await self._write_checkpoint()
            await self._committer.check()
            asked_at_s = clock.monotonic_s()
            batch = await batches.next(self.progress.version, self._tree)
            now_s = clock.monotonic_s()
            self._reporter.waited(
                now_s - asked_at_s, cause="stale" if isinstance(batch, OutdatedTrajectory) else "empty"
            )
            match batch:
                case ReadyBatch() if drain.requested:
                    await batches.release(batch.batch_id)
                case ReadyBatch():
                    await self._step(batches, batch, wait_s=now_s - trained_at_s)
                    trained_at_s = checked_at_s = clock.monotonic_s()
                case OutdatedTrajectory():
                    self._reporter.outdated(batch)
                case None if now_s - checked_at_s >= self._config.republish_after_s:
                    await self._publish_if_missing()
                    checked_at_s = now_s
                case None:
                    pass

    async def _step(self, batches: BatchSource, batch: ReadyBatch, *, wait_s: float) -> None:
        """One update, from a batch that was just judged to the start of its acknowledgement."""
        context = self._context
        before = self.progress.version
        if context.settings.staleness.max_lag > 0 and self._config.prefetch:
            batches.prefetch(next_version(before))
        response = respond(self._tiers, [item.verdict.lag for item in batch.judged])
        started_at_s = context.clock.now_s()
        self._updating = True
        try:
            metrics, policy = await self._thread.run(
                partial(self._update, batch.trajectories, number=before.step + 1, response=response)
            )
        except RecordError as error:
            self._updating = False
            await self._refuse(batches, batch, error)
            return
        self._updating = False
        finished_at_s = context.clock.now_s()
        self._progress = self.progress.after(batch.trajectories)
        self._policy, self._published_at_s = policy, finished_at_s
        step = Step(
            progress=self._progress,
            batch=batch,
            metrics=metrics,
            response=response,
            started_at_s=started_at_s,
            finished_at_s=finished_at_s,
            wait_s=wait_s,
            # Whoever follows a trajectory's trace finds the update it took part in.
            trace_parent=context.telemetry.root(
                wanted=any(is_sampled(trajectory.trace_parent) for trajectory in batch.trajectories)
            ),
        )
        self._reporter.trained(step)
        self._steps_since_checkpoint += 1
        committing_since_s = context.clock.monotonic_s()
        await self._committer.begin(
            ConsumedBatch(
                batch_id=batch.batch_id,
                version=before,
                consumptions=[Consumption(item.trajectory_id, item.verdict) for item in batch.judged],
            ),
            self._snapshot(),
            self._tree,
            trace_parent=step.trace_parent,
            done=partial(self._reporter.committed, step),
        )
        self._reporter.waited(context.clock.monotonic_s() - committing_since_s, cause="weights")
        if self._steps_since_checkpoint >= self._config.checkpoint_every_steps:
            await self._write_checkpoint()

    def _update(
        self, trajectories: Sequence[Trajectory], *, number: int, response: Response
    ) -> tuple[dict[str, float], dict[str, Array]]:
        metrics = self._trainer.update(self._trainer.prepare(trajectories), number=number, response=response)
        spoiled = [name for name, value in metrics.items() if not math.isfinite(value)]
        if spoiled:
            raise TidegateError(
                f"Update {number} is not finite: {', '.join(spoiled)}",
                why="the learning rate is too high, or a reward or value is out of scale",
                fix="lower the learning rate; the learner goes on from its last checkpoint",
            )
        return metrics, self._trainer.policy()

    async def _refuse(self, batches: BatchSource, batch: ReadyBatch, error: RecordError) -> None:
        """Drop what no update can be made from, so that the same batch does not come back for ever."""
        spoiled = [trajectory for trajectory in batch.trajectories if not await self._fits([trajectory])]
        self._context.log.error("batch_invalid", batch=batch.batch_id, error=str(error))
        self._context.stats.add(statistics.INVALID_BATCHES)
        await batches.release(
            batch.batch_id,
            dropped=[
                Dropped(trajectory_id=trajectory.trajectory_id, reason="invalid", detail=str(error))
                for trajectory in spoiled or batch.trajectories
            ],
        )

    async def _fits(self, trajectories: Sequence[Trajectory]) -> bool:
        try:
            await self._thread.run(partial(self._trainer.prepare, trajectories))
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
        """Nobody sends batches: see to it that the newest version is there to be followed (after a lost disk)."""
        await self._committer.wait()
        with contextlib.suppress(UnavailableError):  # the next look comes soon
            head, kept = await self._weights.head()
            version = self.progress.version
            if head is None or head.version != version or version not in kept:
                self._context.log.warning("policy_published_again", version=str(version))
                await self._weights.publish(self._snapshot(), self._tree)

    async def _write_checkpoint(self) -> None:
        """Begin to write this moment down; training goes on meanwhile."""
        self._steps_since_checkpoint = 0
        await self._checkpointing.begin(
            Checkpoint(
                run=self._context.settings.run,
                policy_kind=self._context.settings.policy.kind,
                progress=self.progress,
                lineages=tuple(self._tree.lineages.values()),
                consumed=self._committer.unacknowledged(),
                policy=self._policy,
                trainer=self._trainer.state(),
                written_at_s=self._context.clock.now_s(),
                base_digest=self._base_digest,
            )
        )
