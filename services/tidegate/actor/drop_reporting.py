"""Report tasks that end without a trajectory: the ledger drops their samples at once, and they are counted."""

from tidegate.actor.rollouts.outcomes import DroppedTask, EndedBy
from tidegate.catalogue import actor as statistics
from tidegate.catalogue.kinds import Counter, Family
from tidegate.catalogue.telemetry import (
    ATTR_ATTEMPT,
    ATTR_BIN,
    ATTR_ENV,
    ATTR_LENGTH,
    ATTR_REASON,
    ATTR_RUN,
    ATTR_TASK,
    SPAN_GENERATE,
)
from tidegate.core.ids import trajectory_id
from tidegate.core.labels import Labels
from tidegate.core.lengths import length_bucket
from tidegate.core.records import Task
from tidegate.runtime.drop_reports import report_dropped
from tidegate.runtime.service import ServiceContext
from tidegate.wire.clients.trajectory_store import Dropped, TrajectoryStoreClient
from tidegate.wire.task_proof import proof_of

# Counters by the way a task ends without a trajectory: all tasks, and by curriculum bin.
ENDED: dict[EndedBy, tuple[Counter, Family[Counter]]] = {
    "cut": (statistics.CUT, statistics.CUT_IN_BIN),
    "settled": (statistics.EARLY_STOPPED, statistics.EARLY_STOPPED_IN_BIN),
    "failed": (statistics.FAILED, statistics.FAILED_IN_BIN),
}


class DropReporter:
    """Reports samples that will never arrive to the trajectory store. Shared by all publishing loops."""

    def __init__(self, context: ServiceContext, store: TrajectoryStoreClient) -> None:
        self._context = context
        self._store = store
        self._labels = Labels()

    async def report(self, task: Task, dropped_task: DroppedTask) -> bool:
        """Drop all samples of a task, retrying while the store is away; False if the actor drained first.

        All samples go in one transaction. The ledger keeps the samples that an earlier attempt recorded, so a group is
        never dropped in part.
        """
        context = self._context
        dropped = [
            Dropped(trajectory_id(task.task_id, sample_index=index), dropped_task.reason, dropped_task.detail)
            for index in range(task.num_samples)
        ]
        proof = proof_of(task, [item.trajectory_id for item in dropped], b"")
        if not await report_dropped(context, self._store, dropped, task_id=task.task_id, proof=proof):
            return False
        self._count(task, dropped_task)
        self._trace(task, dropped_task)
        return True

    def _count(self, task: Task, dropped_task: DroppedTask) -> None:
        stats, num = self._context.stats, task.num_samples
        ended, ended_in_bin = ENDED[dropped_task.by]
        stats.add(ended, num)
        stats.add(ended_in_bin.member(self._labels.of(task.curriculum_bin)), num)
        if dropped_task.by == "cut":
            stats.add(statistics.CUT_AT_LENGTH.member(length_bucket(dropped_task.length)), num)
            stats.add(statistics.CUT_S, dropped_task.elapsed_s)
        elif dropped_task.by == "settled":
            stats.add(statistics.EARLY_STOPPED_GROUPS)
            stats.add(statistics.UNSAMPLED, num - dropped_task.num_made)

    def _trace(self, task: Task, dropped_task: DroppedTask) -> None:
        context = self._context
        now_s = context.clock.now_s()
        if dropped_task.by != "settled":
            context.log.info(
                "task_cut" if dropped_task.by == "cut" else "task_failed",
                task_id=task.task_id,
                length=dropped_task.length,
                reason=dropped_task.reason,
                why=dropped_task.detail,
            )
        context.telemetry.emit(
            SPAN_GENERATE,
            parent=task.trace_parent,
            started_at_s=now_s - dropped_task.elapsed_s,
            finished_at_s=now_s,
            attributes={
                ATTR_RUN: task.run_id,
                ATTR_ENV: task.env_id,
                ATTR_TASK: task.task_id,
                ATTR_ATTEMPT: task.attempt,
                ATTR_REASON: dropped_task.reason,
                ATTR_BIN: task.curriculum_bin,
                ATTR_LENGTH: dropped_task.length,
            },
        )
