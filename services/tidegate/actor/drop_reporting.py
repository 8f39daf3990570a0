"""Ending tasks that give no trajectory: their samples become terminal in the ledger at once, and are counted.

Counters, in trajectories unless they say otherwise: ``cut_total``, ``cut_length.<bucket>_total`` and
``cut_bin.<bin>_total`` for what was cut, with ``cut_s_total`` seconds of work; ``settled_total``,
``settled_bin.<bin>_total`` and ``settled_groups_total`` for groups settled by rule, ``unsampled_total`` for the samples
of them that were never made; ``failed_total`` and ``failed_bin.<bin>_total`` for episodes that could not be ended.
"""

from tidegate.actor.rollouts.outcomes import GivenUp
from tidegate.core.ids import trajectory_id
from tidegate.core.labels import Labels
from tidegate.core.lengths import length_bucket
from tidegate.core.records import Task
from tidegate.runtime.drop_reports import report_dropped
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.telemetry_names import (
    ATTR_ATTEMPT,
    ATTR_BIN,
    ATTR_ENV,
    ATTR_LENGTH,
    ATTR_REASON,
    ATTR_RUN,
    ATTR_TASK,
    SPAN_GENERATE,
)
from tidegate.wire.clients.trajectory_store import Dropped, TrajectoryStoreClient


class Settler:
    """Tells the store what will never come. One for all publishing loops."""

    def __init__(self, context: ServiceContext, store: TrajectoryStoreClient) -> None:
        """Nothing was given up yet."""
        self._context = context
        self._store = store
        self._labels = Labels()

    async def settle(self, task: Task, given_up: GivenUp) -> bool:
        """Make all samples of a task terminal, however long the store is away; False when draining came first.

        All of them in one transaction, whatever became of an earlier attempt: the ledger keeps what it already knows,
        so a group is never settled in part.
        """
        context = self._context
        dropped = [
            Dropped(trajectory_id(task.task_id, sample_index=index), given_up.reason, given_up.detail)
            for index in range(task.num_samples)
        ]
        if not await report_dropped(context, self._store, dropped, task_id=task.task_id):
            return False
        self._count(task, given_up)
        self._trace(task, given_up)
        return True

    def _count(self, task: Task, given_up: GivenUp) -> None:
        stats, num = self._context.stats, task.num_samples
        stats.add(f"{given_up.by}_total", num)
        stats.add(f"{given_up.by}_bin.{self._labels.of(task.curriculum_bin)}_total", num)
        if given_up.by == "cut":
            stats.add(f"cut_length.{length_bucket(given_up.length)}_total", num)
            stats.add("cut_s_total", given_up.elapsed_s)
        elif given_up.by == "settled":
            stats.add("settled_groups_total")
            stats.add("unsampled_total", num - given_up.num_made)

    def _trace(self, task: Task, given_up: GivenUp) -> None:
        context = self._context
        now_s = context.clock.now_s()
        if given_up.by != "settled":
            context.log.info(
                "task_cut" if given_up.by == "cut" else "task_failed",
                task_id=task.task_id,
                length=given_up.length,
                reason=given_up.reason,
                why=given_up.detail,
            )
        context.telemetry.emit(
            SPAN_GENERATE,
            parent=task.trace_parent,
            started_at_s=now_s - given_up.elapsed_s,
            finished_at_s=now_s,
            attributes={
                ATTR_RUN: task.run_id,
                ATTR_ENV: task.env_id,
                ATTR_TASK: task.task_id,
                ATTR_ATTEMPT: task.attempt,
                ATTR_REASON: given_up.reason,
                ATTR_BIN: task.curriculum_bin,
                ATTR_LENGTH: given_up.length,
            },
        )
