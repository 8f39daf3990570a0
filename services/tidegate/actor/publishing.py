"""Publishing: finished rollouts become records, one message a task, acknowledged before their task is.

Segments and episodes of several turns carry their rewards and go to TRAJECTORIES; groups of completions go to ROLLOUTS
to be scored.
"""

from collections.abc import Sequence

import msgspec

from tidegate.actor.drop_reporting import DropReporter
from tidegate.actor.engines.port import Rollouts
from tidegate.actor.in_flight import Finished, InFlightTasks, LeasedTask
from tidegate.actor.rollouts.outcomes import DroppedTask, failed_task
from tidegate.actor.rollouts.progress_checkpoints import ProgressCheckpoints
from tidegate.actor.rollouts.scoring import any_worker, score_all
from tidegate.actor.state import STAGE_GENERATE, STAGE_SCORE, Provenance, records_of, rewarded
from tidegate.catalogue import actor as statistics
from tidegate.catalogue.telemetry import (
    ATTR_ATTEMPT,
    ATTR_DELIVERY_COUNT,
    ATTR_ENV,
    ATTR_RUN,
    ATTR_STAGE,
    ATTR_TASK,
    ATTR_TRAJECTORY,
    ATTR_VERSION_END,
    ATTR_VERSION_START,
    METRIC_STAGE_DURATION,
    METRIC_TOKENS,
    SPAN_GENERATE,
    SPAN_SEND_ROLLOUTS,
    SPAN_SEND_TRAJECTORIES,
    SPAN_TASK_LEASE,
)
from tidegate.core.cut_off import as_judged
from tidegate.core.deliveries import fails_for_good
from tidegate.core.errors import PayloadTooLargeError, TidegateError
from tidegate.core.records import StageTiming, Task, Trajectory
from tidegate.runtime.outbox import Outbox
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.telemetry import is_sampled, messaging
from tidegate.wire.clients.environment import Completion
from tidegate.wire.clients.trajectory_store import TrajectoryStoreClient


class Publisher:
    """Publishes finished rollouts. One ``run`` loop per concurrent unacknowledged publish."""

    def __init__(
        self,
        context: ServiceContext,
        in_flight: InFlightTasks,
        checkpoints: ProgressCheckpoints,
        *,
        retry_delay_s: float,
    ) -> None:
        """The clients serve only groups too large for a message, and tasks that end without a record.

        ``checkpoints`` deletes the progress of tasks that are done.
        """
        self._context = context
        self._in_flight = in_flight
        self._checkpoints = checkpoints
        self._retry_delay_s = retry_delay_s
        store = TrajectoryStoreClient(context.channel("trajectory_store"))
        self._outbox = Outbox(context, store)
        self._environment = any_worker(context)
        self._reporter = DropReporter(context, store)
        settings = context.settings
        self._overlong = settings.long_tail.overlong_rule(length_max=settings.workload.sampler.max_new_tokens)

    async def run(self) -> None:
        """Publish until the generating loop has ended and its last result is published."""
        context = self._context
        while (finished := await self._in_flight.finished.take()) is not None:
            leased = finished.leased
            try:
                done = await self._finish(finished)
            except TidegateError as error:  # permanent: this rollout cannot be published
                context.stats.add(statistics.TASKS_FAILED)
                context.log.warning("rollout_not_published", task_id=leased.task.task_id, error=str(error))
                done = await self._drop_failed(leased, error)
            if done:
                await leased.delivery.ack()
                await self._checkpoints.forget(leased.task.task_id)
            else:
                self._checkpoints.release(leased.task.task_id)
                await leased.delivery.nak(self._retry_delay_s)
            self._in_flight.answered(leased)

    async def _drop_failed(self, leased: LeasedTask, error: TidegateError) -> bool:
        """Drop a task whose result was refused at enough deliveries; False when it is to be delivered again."""
        num_delivered = leased.delivery.num_delivered
        if not fails_for_good(num_delivered, retryable=error.retryable):
            return False
        detail = f"its result could not be published at delivery {num_delivered}: {error}"
        try:
            return await self._reporter.report(leased.task, failed_task(leased.task, detail=detail))
        except TidegateError as refused:
            self._context.log.warning("drop_refused", task_id=leased.task.task_id, error=str(refused))
            return False

    async def _finish(self, finished: Finished) -> bool:
        """Publish rollouts or report a dropped task; False when another actor must run the task."""
        leased, result, stats = finished.leased, finished.result, self._context.stats
        if isinstance(result, DroppedTask):
            return await self._reporter.report(leased.task, result)
        records = self._records(leased, result)
        sent_at_s = self._context.clock.now_s()
        dropped = await self._publish(leased.task, records)
        if dropped is not None:
            return await self._reporter.report(leased.task, dropped)
        self._sent(leased.task, records, sent_at_s=sent_at_s)
        stats.add(statistics.STEPS, sum(record.num_steps for record in records))
        stats.add(statistics.TRAJECTORIES, len(records))
        return True

    def _records(self, leased: LeasedTask, rollouts: Rollouts) -> list[Trajectory]:
        """The records of a task, each with a separate trace."""
        task = leased.task
        provenance = Provenance(actor_id=self._context.instance, taken_at_s=leased.taken_at_s)
        traces = self._traces(leased, num_samples=len(rollouts.samples))
        records = records_of(rollouts, provenance, trace_parents=traces)
        if task.kind == "group" and _are_scored(task, records):
            records = self._with_penalty(records)
        telemetry = self._context.telemetry
        if not telemetry.enabled:
            return records
        took_s = rollouts.finished_at_s - rollouts.started_at_s
        telemetry.observe(METRIC_STAGE_DURATION, took_s, {ATTR_STAGE: STAGE_GENERATE})
        if task.kind == "group":
            num_tokens = sum(record.num_steps for record in records)
            telemetry.count(METRIC_TOKENS, num_tokens, {ATTR_ENV: task.env_id})
        return [
            self._generated(record, leased) if is_sampled(record.trace_parent) else record
            for record in records
        ]

    def _generated(self, record: Trajectory, leased: LeasedTask) -> Trajectory:
        """A sampled record, with its generation as the newest span of its trace."""
        task = leased.task
        trace_parent = self._context.telemetry.emit(
            SPAN_GENERATE,
            parent=record.trace_parent,
            started_at_s=record.started_at_s,
            finished_at_s=record.finished_at_s,
            attributes={
                ATTR_RUN: task.run_id,
                ATTR_ENV: task.env_id,
                ATTR_TASK: task.task_id,
                ATTR_TRAJECTORY: record.trajectory_id,
                ATTR_ATTEMPT: task.attempt,
                ATTR_DELIVERY_COUNT: leased.delivery.num_delivered,
                ATTR_VERSION_START: str(record.spans[0].version),
                ATTR_VERSION_END: str(record.spans[-1].version),
                **(self._completion(record) if task.kind == "group" else {}),
            },
        )
        return msgspec.structs.replace(record, trace_parent=trace_parent)

    def _completion(self, record: Trajectory) -> dict[str, str | int]:
        """Span attributes of a completion by OpenTelemetry's generative AI conventions, without its text."""
        return {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "tidegate",
            "gen_ai.request.model": self._context.settings.policy.kind,
            "gen_ai.conversation.id": record.trajectory_id,
            "gen_ai.usage.output_tokens": record.num_steps,
            "gen_ai.response.finish_reasons": record.finish_reason,
        }

    def _sent(self, task: Task, records: Sequence[Trajectory], *, sent_at_s: float) -> None:
        """Add the publishing span to each sampled trace; one message carried all records."""
        scored = _are_scored(task, records)
        stream = "TRAJECTORIES" if scored else "ROLLOUTS"
        for record in records:
            if is_sampled(record.trace_parent):
                self._context.telemetry.emit(
                    SPAN_SEND_TRAJECTORIES if scored else SPAN_SEND_ROLLOUTS,
                    parent=record.trace_parent,
                    started_at_s=sent_at_s,
                    finished_at_s=self._context.clock.now_s(),
                    attributes=messaging("send", stream, batch=len(records)),
                    kind="producer",
                )

    def _traces(self, leased: LeasedTask, *, num_samples: int) -> list[str]:
        """One trace per trajectory: the first sample continues the task's, others start new ones that link to it."""
        task, telemetry = leased.task, self._context.telemetry
        traces = [task.trace_parent or telemetry.root()]
        for _ in range(1, num_samples):
            trace = telemetry.root()
            telemetry.emit(
                SPAN_TASK_LEASE,
                parent=trace,
                started_at_s=task.admitted_at_s,
                finished_at_s=leased.taken_at_s,
                attributes={ATTR_RUN: task.run_id, ATTR_TASK: task.task_id},
                links=[(task.trace_parent, {})],
                as_root=True,
            )
            traces.append(trace)
        return traces

    async def _publish(self, task: Task, records: Sequence[Trajectory]) -> DroppedTask | None:
        """Send scored records to TRAJECTORIES and others to ROLLOUTS.

        A group too large for a message cannot go through the environment workers: they score it in a call instead. The
        drop of its task, where a verifier failed and the run drops such groups.
        """
        if not _are_scored(task, records):
            try:
                await self._outbox.send_rollouts(task, records)
                return None
            except PayloadTooLargeError:
                scored = await self._outbox.retry(task.task_id, lambda: self._score(task, records))
                if isinstance(scored, DroppedTask):
                    return scored
                records = scored
        await self._outbox.send_trajectories(records, of=task)
        return None

    async def _score(self, task: Task, records: Sequence[Trajectory]) -> list[Trajectory] | DroppedTask:
        started_at_s = self._context.clock.now_s()
        rewards = await score_all(
            self._environment,
            [task.env_id] * len(records),
            [
                Completion(
                    record.prompt_id,
                    record.prompt,
                    record.answer,
                    as_judged(record.completion, finish_reason=record.finish_reason),
                    record.curriculum_bin,
                )
                for record in records
            ],
        )
        failed = next((given.log for given in rewards if given.failed), None)
        if failed is not None:
            return failed_task(task, detail=failed)
        stage = StageTiming(STAGE_SCORE, "environment", started_at_s, self._context.clock.now_s())
        judged = [
            rewarded(record, reward=given.reward, components=given.components, log=given.log, stage=stage)
            for record, given in zip(records, rewards, strict=True)
        ]
        return self._with_penalty(judged)

    def _with_penalty(self, judged: list[Trajectory]) -> list[Trajectory]:
        """Subtract the length penalty from the rewards, where the run file defines one."""
        if self._overlong is None:
            return judged
        return [self._overlong.applied(record) for record in judged]


def _are_scored(task: Task, records: Sequence[Trajectory]) -> bool:
    """Whether all samples already have rewards."""
    return task.kind == "segment" or all(record.reward is not None for record in records)
