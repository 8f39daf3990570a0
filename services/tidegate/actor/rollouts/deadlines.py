"""Checks running rollouts against the staleness budget and marks those that will exceed it.

Consumes: announced versions, the status of running rollouts. Produces: marks, which the engine and the runner obey at
their next boundary. Waits for time. Only with ``long_tail.policy: cut``.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

import msgspec

from tidegate.actor.engines.port import EngineControl, Rollouts
from tidegate.actor.rollouts.predictions import Predictions
from tidegate.core.errors import UnknownVersionError
from tidegate.core.ids import PolicyVersion, TaskId
from tidegate.core.long_tail import Cut, PublishRate, RolloutUnderWay, decide_rollout
from tidegate.core.records import Task
from tidegate.runtime.policy_watch import PolicyWatch
from tidegate.runtime.service import ServiceContext

# Maximum delay of a cut; a check costs some ten microseconds per task.
CHECK_S = 0.05


class RolloutStatus(msgspec.Struct, frozen=True):
    """A running task: its oldest version, its start (seconds since the epoch), its steps or tokens so far."""

    task_id: TaskId
    oldest: PolicyVersion
    started_at_s: float
    length: int


class CutMark(msgspec.Struct, frozen=True):
    """Why a task is cut, and its length by then: steps or tokens, and seconds."""

    decision: Cut
    length: int
    elapsed_s: float


class ReportsStatus(Protocol):
    """A task whose samples are generated concurrently and which reports its status."""

    def status(self) -> RolloutStatus | None:
        """Its status; None before its first token."""
        ...


class DeadlineWatch:
    """The running rollouts. ``changed`` is set whenever one of them was marked."""

    def __init__(
        self,
        context: ServiceContext,
        watch: PolicyWatch,
        control: EngineControl,
        predictions: Predictions,
    ) -> None:
        self._context = context
        self._watch = watch
        self._control = control
        self._predictions = predictions
        self._config = context.settings.long_tail
        self._rate = PublishRate()
        self._tasks: dict[TaskId, Task] = {}
        self._generated: dict[TaskId, RolloutStatus] = {}
        self._groups: dict[TaskId, ReportsStatus] = {}
        self.marks: dict[TaskId, CutMark] = {}
        self.changed = asyncio.Event()

    @property
    def wanted(self) -> bool:
        """Whether this run cuts anything."""
        return self._config.policy == "cut"

    def track(self, tasks: Sequence[Task]) -> None:
        """Track tasks that are about to start, until ``untrack``."""
        self._tasks |= {task.task_id: task for task in tasks}

    def track_group(self, task: Task, growing: ReportsStatus) -> None:
        """Track a task that reports its status, until ``untrack``."""
        self._tasks[task.task_id] = task
        self._groups[task.task_id] = growing

    def record_generated(self, rollouts: Rollouts) -> None:
        """Record that a task is generated and waits for its time to pass."""
        task_id = rollouts.task.task_id
        if task_id not in self._generated:
            self._generated[task_id] = RolloutStatus(
                task_id=task_id,
                oldest=rollouts.samples[0].spans[0].version,
                started_at_s=rollouts.started_at_s,
                length=max(sample.num_steps for sample in rollouts.samples),
            )

    def untrack(self, task_id: TaskId) -> None:
        """Stop tracking a task."""
        self._generated.pop(task_id, None)
        self._groups.pop(task_id, None)
        self._tasks.pop(task_id, None)
        if self.marks.pop(task_id, None) is not None:
            self._control.cut = frozenset(self.marks)

    async def run(self) -> None:
        """Check until draining."""
        while not await self._context.drain.sleep(CHECK_S):
            self.check()

    def check(self) -> None:
        """One check: gather, decide for each running rollout, mark those to cut."""
        head, clock = self._watch.head, self._context.clock
        if head is None:
            return
        monotonic_s, now_s = clock.monotonic_s(), clock.now_s()
        self._rate = self._rate.publish(head.version, now_s=monotonic_s)
        versions_per_s = self._rate.per_s(now_s=monotonic_s)
        fresh: dict[TaskId, CutMark] = {}
        for rollout in self._running():
            try:
                lag = head.tree.distance(head.version, rollout.oldest)
            except UnknownVersionError:
                continue  # a branch newer than this announcement: the next check knows it
            elapsed_s = max(0.0, now_s - rollout.started_at_s)
            decision = decide_rollout(
                RolloutUnderWay(elapsed_s=elapsed_s, lag=lag),
                self._predictions.seconds(self._tasks[rollout.task_id]),
                limits=self._context.live.limits(),
                versions_per_s=versions_per_s,
                finish_chance_min=self._config.finish_chance_min,
            )
            if isinstance(decision, Cut):
                fresh[rollout.task_id] = CutMark(decision, rollout.length, elapsed_s)
        if fresh:
            self.marks |= fresh
            self._control.cut = frozenset(self.marks)
            self.changed.set()

    def _running(self) -> list[RolloutStatus]:
        running, position = self._control.running, self._control.position
        rollouts = list(self._generated.values())
        grown = [growing.status() for growing in self._groups.values()]
        rollouts += [rollout for rollout in grown if rollout is not None]
        if running is not None:
            rollouts += [
                RolloutStatus(task_id, running.oldest, running.started_at_s, position)
                for task_id in running.task_ids
                if task_id not in self._generated
            ]
        return [
            rollout
            for rollout in rollouts
            if rollout.task_id in self._tasks and rollout.task_id not in self.marks
        ]
