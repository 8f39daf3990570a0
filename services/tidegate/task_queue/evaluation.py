"""Evaluation: one control task, once every so many versions.

Consumes: policy announcements, results (EVENTS).
Produces: a task of kind ``evaluation`` on TASKS; the actor that takes it answers the held-out problems of the run
folder, or plays whole episodes from seeds that ``seed`` of the task determines, the same for every version.
Waits for: a version to be due, and the one before to end, so that at most one is in flight. It is not admitted, not
journaled as work and never trained on; if it is lost, the next one is due all the same.
Unblocked by: the learner, and the actor that evaluates.
"""

from tidegate.catalogue import task_queue as statistics
from tidegate.core.errors import TidegateError
from tidegate.core.ids import PolicyVersion, TaskId
from tidegate.core.records import Task
from tidegate.task_queue.loops import TICK_S, TaskQueue
from tidegate.task_queue.state import evaluation_due
from tidegate.wire.convert import task_to_bytes
from tidegate.wire.subjects import HEADER_TRACE_PARENT, POOL

EVENT, BEGUN = "evaluation", "evaluation_begun"


class Evaluation:
    """Publishes evaluation tasks; the journal remembers the version of the last one."""

    def __init__(self, queue: TaskQueue) -> None:
        self._queue = queue
        # When the one in flight was published (monotonic seconds); None once its result came.
        self._published_at_s: float | None = None

    async def run(self) -> None:
        """Check every new head until draining."""
        queue, context = self._queue, self._queue.context
        await context.bus.subscribe(context.topology.event(EVENT), self._receive_result)
        seen: PolicyVersion | None = None
        while not context.drain.requested:
            await queue.policy.changed(seen, timeout_s=TICK_S)
            head = queue.policy.head
            if head is None:
                continue
            seen = head.version
            due = evaluation_due(
                head.version,
                last=queue.journal.evaluated,
                every_versions=queue.config.evaluation_every_versions,
            )
            if due and not queue.retired and not self._is_in_flight():
                await self._publish(head.version)

    def _is_in_flight(self) -> bool:
        if self._published_at_s is None:
            return False
        elapsed_s = self._queue.context.clock.monotonic_s() - self._published_at_s
        return elapsed_s < self._queue.config.task_deadline_s

    async def _publish(self, version: PolicyVersion) -> None:
        context, workload = self._queue.context, self._queue.workload
        now_s = context.clock.now_s()
        task = Task(
            task_id=TaskId(f"e-{version.lineage}-{version.step}"),
            run_id=workload.run_id,
            kind="evaluation",
            required_version=version,
            env_id=workload.env_id,
            seed=workload.seed,
            sampler=workload.sampler,
            admitted_at_s=now_s,
            trace_parent=context.telemetry.root(),
        )
        try:
            # First, so that weight distribution still has the version, which it keeps until the result.
            await context.bus.event(BEGUN, {"version": str(version)})
            await context.bus.publish(
                context.topology.tasks(POOL),
                task_to_bytes(task),
                message_id=task.task_id,
                headers={HEADER_TRACE_PARENT: task.trace_parent},
                deadline_s=self._queue.config.publish_deadline_s,
            )
        except TidegateError as error:
            if not error.retryable:
                raise
            context.log.warning("evaluation_publish_failed", version=str(version), error=str(error))
            return
        self._published_at_s = context.clock.monotonic_s()
        self._queue.journal.keep_evaluated(version)
        context.stats.add(statistics.EVALUATIONS)

    async def _receive_result(self, _data: bytes, _headers: dict[str, str]) -> None:
        self._published_at_s = None
