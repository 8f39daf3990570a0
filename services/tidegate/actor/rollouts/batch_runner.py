"""Runs a batch of tasks, from the engine's first step or token to rollouts that can be published.

The engine computes in one worker thread. Finished rollouts then wait until their time has passed
(``workload.latency``) unless they are cut meanwhile. With ``long_tail.early_stop_after`` the first samples of each
group are scored, and the others are generated only where their rewards differ.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec

from tidegate.actor.engines.port import Completed, Engine, EngineControl, Rollouts
from tidegate.actor.rollouts.deadlines import DeadlineWatch
from tidegate.actor.rollouts.early_stop import EarlyStopCheck
from tidegate.actor.rollouts.heldout import HeldOutProblem
from tidegate.actor.rollouts.latency import rollout_time_s
from tidegate.actor.rollouts.outcomes import DroppedTask, RefusedTask, RolloutResult, cut_short, stopped_early
from tidegate.actor.rollouts.predictions import Predictions
from tidegate.catalogue import actor as statistics
from tidegate.core.errors import TidegateError, UnavailableError
from tidegate.core.ids import TaskId
from tidegate.core.records import Task
from tidegate.runtime.races import is_set_within
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.threads import DaemonThread

T = TypeVar("T")


class BatchOutcome(msgspec.Struct, frozen=True):
    """The result of a batch: rollouts, and the tasks that the engine cannot run."""

    rollouts: list[Rollouts]
    refused: list[tuple[Task, TidegateError]]


def run_batch(engine: Engine, tasks: Sequence[Task]) -> BatchOutcome:
    """Check each task by itself, then run the good ones together: one bad task does not fail the batch."""
    good: list[Task] = []
    refused: list[tuple[Task, TidegateError]] = []
    for task in tasks:
        try:
            engine.check_task(task)
        except TidegateError as error:
            refused.append((task, error))
        else:
            good.append(task)
    return BatchOutcome(engine.generate(good) if good else [], refused)


class BatchRunner:
    """Runs one batch at a time; the engine is called from one worker thread.

    ``flows_max``: calls of ``run`` at once; ``batch_max``: tasks of one.
    """

    def __init__(
        self,
        context: ServiceContext,
        *,
        engine: Engine,
        control: EngineControl,
        predictions: Predictions,
        deadlines: DeadlineWatch,
        slots: int,
    ) -> None:
        """``deadlines`` marks the tasks to cut. ``slots``: tasks of one batch."""
        self.flows_max = 1
        self.batch_max = slots
        self._context = context
        self._engine = engine
        self._control = control
        self._predictions = predictions
        self._deadlines = deadlines
        self._latency = context.settings.workload.latency_by_bin()
        self._early_stop = EarlyStopCheck(context)
        # Environments are third-party code: a call into one may hang, and must not keep the process from ending.
        self._thread = DaemonThread("engine")
        self._call: asyncio.Future[Any] | None = None
        self._abandoned = False

    async def _in_thread(self, call: Callable[[], T]) -> T | None:
        """The result of ``call``; None once the engine was abandoned."""
        if self._abandoned:
            return None
        self._call = asyncio.get_running_loop().run_in_executor(self._thread, call)
        try:
            return await self._call
        except asyncio.CancelledError:
            if self._abandoned:
                return None
            raise

    def abandon(self) -> None:
        """Wait no longer for the engine, which does not return; its tasks are released to other actors."""
        self._abandoned = True
        self.stop()
        if self._call is not None:
            self._call.cancel()

    def stop(self) -> None:
        """Stop running rollouts at their next boundary; their tasks are released to other actors."""
        self._control.stop = True
        self._deadlines.changed.set()

    def close(self) -> None:
        """Start no more work."""
        self._thread.shutdown(wait=False)

    async def run(self, tasks: Sequence[Task]) -> AsyncGenerator[RolloutResult]:
        """Run tasks together and yield the result of each when it is done; stopped tasks have no result."""
        self._deadlines.track(tasks)
        tasks = [self._predictions.capped(task) for task in tasks]
        in_rounds = all(self._early_stop.applies_to(task) for task in tasks)
        rounds = self._in_rounds(tasks) if in_rounds else self._round(tasks)
        try:
            async with aclosing(rounds):
                async for result in rounds:
                    self._deadlines.untrack(result.task.task_id)
                    if isinstance(result, Rollouts):
                        self._predictions.record_duration(result)
                    yield result
        finally:
            for task in tasks:
                self._deadlines.untrack(task.task_id)

    async def complete(self, task: Task, problems: Sequence[HeldOutProblem]) -> Completed:
        """Answer the held-out problems of an evaluation under one policy.

        Raises:
            TidegateError: the engine cannot, or must stop.
        """
        prompts = [problem.prompt for problem in problems]
        completed = await self._in_thread(lambda: self._engine.complete(prompts, task.sampler))
        if completed is None:
            raise UnavailableError("The engine does not answer", why="a call into it never returned")
        return completed

    # -- one round -------------------------------------------------------------------------------------------------

    async def _round(self, tasks: Sequence[Task], *, first_sample: int = 0) -> AsyncGenerator[RolloutResult]:
        """The engine, then the wait: each task as soon as its time has passed or it was cut."""
        clock, stats = self._context.clock, self._context.stats
        started_at_s = clock.monotonic_s()
        outcome = await self._in_thread(lambda: run_batch(self._engine, tasks))
        if outcome is None:
            return
        now_s = clock.monotonic_s()
        stats.add(statistics.BUSY_S, now_s - started_at_s)
        stats.set(statistics.SWAPS, self._control.num_swaps)
        stats.set(statistics.SWAP_MS, 1e3 * self._control.swap_s)
        for task, error in outcome.refused:
            yield RefusedTask(task, error)
        due_at_s = {
            rollouts.task.task_id: now_s + self._time_left_s(rollouts, first_sample=first_sample)
            for rollouts in outcome.rollouts
        }
        for task in tasks:
            if task.task_id not in due_at_s and task.task_id in self._deadlines.marks:
                yield self._cut(task, first_sample=first_sample)
        waiting = list(outcome.rollouts)
        for rollouts in waiting:
            self._deadlines.record_generated(rollouts)
        while waiting and not self._control.stop:
            now_s = clock.monotonic_s()
            still: list[Rollouts] = []
            for rollouts in waiting:
                task_id = rollouts.task.task_id
                if due_at_s[task_id] <= now_s:
                    yield self._ended(rollouts)
                elif task_id in self._deadlines.marks:
                    yield self._cut(rollouts.task, first_sample=first_sample)
                else:
                    still.append(rollouts)
            waiting = still
            if waiting:
                await self._wait(until_s=min(due_at_s[rollouts.task.task_id] for rollouts in waiting))

    def _time_left_s(self, rollouts: Rollouts, *, first_sample: int) -> float:
        took_s = max(0.0, self._context.clock.now_s() - rollouts.started_at_s)
        wanted_s = rollout_time_s(self._latency, rollouts.task, first_sample=first_sample)
        return max(0.0, wanted_s - took_s)

    async def _wait(self, *, until_s: float) -> None:
        """Wait until the next rollout's time has passed, one is marked, or the engine must stop; counted as work."""
        clock, stats, changed = self._context.clock, self._context.stats, self._deadlines.changed
        started_at_s = clock.monotonic_s()
        changed.clear()
        if not self._control.stop:
            await is_set_within(changed, timeout_s=until_s - started_at_s)
        waited_s = clock.monotonic_s() - started_at_s
        stats.add(statistics.BUSY_S, waited_s)
        stats.add(statistics.WAIT_LATENCY_S, waited_s)

    def _ended(self, rollouts: Rollouts) -> Rollouts:
        """Set the end of rollouts to now, after their wait, and not to the end of generation."""
        self._predictions.record_lengths(rollouts)
        if not self._latency:
            return rollouts
        finished_at_s = max(rollouts.finished_at_s, self._context.clock.now_s())
        return msgspec.structs.replace(rollouts, finished_at_s=finished_at_s)

    def _cut(self, task: Task, *, first_sample: int) -> DroppedTask:
        mark = self._deadlines.marks[task.task_id]
        self._predictions.record_cut(task, elapsed_s=mark.elapsed_s, length=mark.length)
        return cut_short(task, mark, num_made=first_sample + task.num_samples)

    # -- in rounds -------------------------------------------------------------------------------------------------

    async def _in_rounds(self, tasks: Sequence[Task]) -> AsyncGenerator[RolloutResult]:
        """The first samples of every group; then the others of the groups that are not stopped early."""
        num_first = self._early_stop.num_first
        opening = [msgspec.structs.replace(task, num_samples=num_first) for task in tasks]
        first: dict[TaskId, Rollouts] = {}
        async with aclosing(self._round(opening)) as results:
            async for result in results:
                if isinstance(result, Rollouts):
                    first[result.task.task_id] = result
                else:
                    yield result
        stopped = await self._early_stop.groups_to_stop(list(first.values()))
        rest: list[Task] = []
        for task in tasks:
            first_round = first.get(task.task_id)
            if first_round is not None and task.task_id in stopped:
                yield stopped_early(task, first_round)
            elif first_round is not None:
                rest.append(msgspec.structs.replace(task, num_samples=task.num_samples - num_first))
        if not rest or self._control.stop:
            return
        async with aclosing(self._round(rest, first_sample=num_first)) as results:
            async for result in results:
                yield _joined(first[result.task.task_id], result) if isinstance(result, Rollouts) else result


def _joined(first_round: Rollouts, rest: Rollouts) -> Rollouts:
    """Join both rounds of a group."""
    samples = (*first_round.samples, *rest.samples)
    return Rollouts(
        task=msgspec.structs.replace(rest.task, num_samples=len(samples)),
        samples=samples,
        started_at_s=first_round.started_at_s,
        finished_at_s=rest.finished_at_s,
    )
