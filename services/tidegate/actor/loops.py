"""The actor's loops over its tasks in flight: fetch tasks, generate rollouts, extend leases.

An engine of batches runs one batch after the other (``rollouts.batch_runner``); an engine that writes tokens runs many
tasks at once (``rollouts.episode_runner``). Engines compute in other threads or processes, so that rollout n + 1
overlaps the publishing of rollout n, and heartbeats are sent during long generations. Draining: fetching stops; running
rollouts finish, or stop half-way through the drain and are released; waiting tasks are released; finished ones are
published.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from tidegate.actor.config import ActorConfig
from tidegate.actor.engines.port import EngineControl
from tidegate.actor.evaluation.port import Evaluator, publish_result
from tidegate.actor.in_flight import Finished, InFlightTasks, LeasedTask
from tidegate.actor.rollouts.outcomes import RefusedTask, RolloutResult, failed_task
from tidegate.actor.rollouts.predictions import Predictions
from tidegate.actor.rollouts.served_policy import ServedPolicy
from tidegate.actor.state import redelivered, split_startable
from tidegate.catalogue import actor as statistics
from tidegate.catalogue.kinds import Counter
from tidegate.core.deliveries import EVALUATIONS_UNTIL_FAILED, fails_for_good, is_spent, spent_detail
from tidegate.core.errors import DeadlineError, RecordError, TidegateError
from tidegate.core.records import Task
from tidegate.runtime.consumer import Delivery
from tidegate.runtime.races import is_set_within
from tidegate.runtime.service import ServiceContext
from tidegate.wire.convert import task_from_bytes
from tidegate.wire.subjects import HEADER_TRAJECTORY_IDS, POOL
from tidegate.wire.validate import validate_task

FETCH_WAIT_S = 0.5
# How soon a draining service notices that the last piece of its work was answered.
DRAIN_POLL_S = 0.05
# Period of checks for the first policy, which arrives once per process.
READY_POLL_S = 0.05
# Every event that ends a wait sets ``wakeup``; longer waits are counted at this period, below that of statistics.
WAKEUP_WAIT_S = 0.25
HEARTBEATS_PER_ACK_WAIT = 3


class Runner(Protocol):
    """Runs tasks on an engine and yields final results."""

    @property
    def flows_max(self) -> int:
        """Calls of ``run`` at once."""
        ...

    @property
    def batch_max(self) -> int:
        """Tasks of one call."""
        ...

    def run(self, tasks: Sequence[Task]) -> AsyncGenerator[RolloutResult]:
        """Run tasks together and yield the result of each when it is done; stopped tasks have no result."""
        ...

    def stop(self) -> None:
        """Stop running rollouts at their next boundary; their tasks are released to other actors."""
        ...

    def close(self) -> None:
        """Start no more work."""
        ...


class WorkLoops:
    """The loops fetch, generate and heartbeat, which share the tasks in flight."""

    def __init__(
        self,
        context: ServiceContext,
        config: ActorConfig,
        *,
        in_flight: InFlightTasks,
        runner: Runner,
        control: EngineControl,
        predictions: Predictions,
        served_policy: ServedPolicy,
        evaluator: Evaluator,
    ) -> None:
        self._context = context
        self._config = config
        self._in_flight = in_flight
        self._runner = runner
        self._control = control
        self._predictions = predictions
        self._served_policy = served_policy
        self._evaluator = evaluator
        self._generating = True
        self._has_failed = False
        self._num_flows = 0

    # -- fetch -----------------------------------------------------------------------------------------------------

    async def fetch(self) -> None:
        """Consumes TASKS into the tasks in flight; waits for room, a policy and a ready engine.

        A started task makes room. Policy and engine come first, because warm-ups and servers take minutes, and a
        task's deadline runs from its delivery.
        """
        context = self._context
        consumer = await context.bus.consumer(context.topology.task_durable(POOL))
        try:
            while not context.drain.requested:
                if not self._can_start_any():
                    await context.drain.sleep(READY_POLL_S)
                    continue
                room = self._in_flight.room()
                if room == 0:
                    await self._in_flight.wait_for_room(timeout_s=FETCH_WAIT_S)
                    continue
                for delivery in await consumer.fetch(room, wait_s=FETCH_WAIT_S):
                    if context.drain.requested or not self._generating:
                        await delivery.nak()
                    else:
                        await self._take(delivery)
        finally:
            await consumer.close()
            self._in_flight.wakeup.set()

    def _can_start_any(self) -> bool:
        return self._generating and self._served_policy.version is not None and not self._control.away

    async def _take(self, delivery: Delivery) -> None:
        context = self._context
        try:
            task = context.bus.failures.read(delivery.subject, lambda: self._decode(delivery.data))
        except RecordError as error:
            context.stats.add(statistics.QUARANTINED)
            context.log.warning("task_quarantined", error=str(error))
            kept = {key: value for key, value in delivery.headers.items() if key == HEADER_TRAJECTORY_IDS}
            try:
                await context.bus.quarantine(context.service, delivery.data, reason=str(error), headers=kept)
            except TidegateError:
                await delivery.nak(self._config.retry_delay_s)  # it cannot be quarantined now: retry later
            else:
                await delivery.term()
            return
        if delivery.num_delivered > 1:
            context.stats.add(statistics.TASKS_REDELIVERED)
            task = redelivered(task, num_delivered=delivery.num_delivered)
        leased = LeasedTask(task, delivery, context.clock.now_s())
        if not self._in_flight.take(leased):
            context.stats.add(statistics.TASKS_DUPLICATE)
            if not self._in_flight.holds(leased):
                await delivery.ack()  # the task stays in the stream, as the message that is in flight

    def _decode(self, data: bytes) -> Task:
        task = task_from_bytes(data)
        validate_task(task)
        run = self._context.settings.run
        if task.run_id != run:
            raise RecordError(f"Task {task.task_id} belongs to run {task.run_id!r}, not {run!r}")
        workload = self._context.settings.workload
        asked = (task.num_samples, task.unroll_length, task.sampler.max_new_tokens)
        most = (max(1, workload.num_samples), workload.unroll_length, workload.sampler.max_new_tokens)
        if any(number > limit for number, limit in zip(asked, most, strict=True)):
            raise RecordError(
                f"Task {task.task_id} asks for {asked} samples, steps and tokens",
                why=f"the run file allows {most}",
            )
        return task

    # -- generate --------------------------------------------------------------------------------------------------

    async def generate(self) -> None:
        """Runs startable tasks to their end; waits for a task, a policy, or room in the publishing queue."""
        ring = asyncio.create_task(self._ring_at_drain())
        try:
            async with asyncio.TaskGroup() as flows:
                while (batch := await self._next_batch()) is not None:
                    self._num_flows += 1
                    flows.create_task(self._flow(batch))
        except BaseExceptionGroup as group:  # a flow that fails ends all of them; raise the first error
            raise group.exceptions[0] from group
        finally:
            ring.cancel()
            # From here on nothing releases a task that is taken: the drain is requested after the last release.
            self._generating = False
            self._runner.stop()
            self._runner.close()
            # Also after a failure: publishers and heartbeats that wait for more would hold up the exit.
            self._in_flight.finished.close()
            for leased in [*self._in_flight.waiting, *self._in_flight.running]:
                await self._release(leased, delay_s=0.0)

    async def _flow(self, batch: list[LeasedTask]) -> None:
        """Call the runner for one batch after another."""
        try:
            if not (batch := await self._without_spent(batch)):
                return
            if batch[0].task.kind == "evaluation":
                await self._evaluate(batch[0])
            else:
                await self._generate(batch)
        except Exception:
            # The group cancels `generate`, but a wait that ends at the same time (`wakeup`) takes no cancellation.
            self._has_failed = True
            raise
        finally:
            self._num_flows -= 1
            self._in_flight.wakeup.set()

    async def _next_batch(self) -> list[LeasedTask] | None:
        """Tasks to start together, as soon as there are any and a place for them; None at a drain and after a failure.

        Waits are counted in proportion to the empty places.
        """
        in_flight, stats, clock = self._in_flight, self._context.stats, self._context.clock
        while not (self._context.drain.requested or self._has_failed):
            in_flight.wakeup.clear()
            num_free = self._runner.flows_max - self._num_flows
            chosen = self._startable() if num_free > 0 else []
            if chosen:
                return in_flight.start(chosen)
            started_at_s = clock.monotonic_s()
            waits_for = self._waits_for()
            await is_set_within(in_flight.wakeup, timeout_s=WAKEUP_WAIT_S)
            if num_free > 0:
                stats.add(waits_for, (clock.monotonic_s() - started_at_s) * num_free / self._runner.flows_max)
        return None

    def _startable(self) -> list[int]:
        """Positions of waiting tasks to start together."""
        tasks = [leased.task for leased in self._in_flight.waiting]
        by_length = self._context.settings.long_tail.group_by_length
        return split_startable(
            tasks,
            own=self._served_policy.version,
            tree=self._served_policy.tree,
            batch_max=self._runner.batch_max,
            lengths=[self._predictions.expected_tokens(task) for task in tasks] if by_length else None,
        )

    def _waits_for(self) -> Counter:
        """What an idle engine waits for; without a broker it is unknown whether TASKS is empty."""
        if self._in_flight.waiting or not self._can_start_any():
            return statistics.WAIT_POLICY_S
        return statistics.WAIT_TASK_S if self._context.bus.connected else statistics.WAIT_BROKER_S

    async def _without_spent(self, batch: list[LeasedTask]) -> list[LeasedTask]:
        """The tasks of a batch to run; those that were delivered too often are dropped as failed."""
        in_flight = self._in_flight
        good: list[LeasedTask] = []
        for leased in batch:
            num_delivered = leased.delivery.num_delivered
            if not is_spent(num_delivered):
                good.append(leased)
            elif leased.task.kind == "evaluation":
                in_flight.stop_running(leased)
                await leased.delivery.ack()
                in_flight.answered(leased)
            else:
                detail = spent_detail(num_delivered)
                await in_flight.finished.put(Finished(leased, failed_task(leased.task, detail=detail)))
                in_flight.stop_running(leased)
        return good

    async def _generate(self, batch: list[LeasedTask]) -> None:
        """Run a batch; each task is published as soon as it is done, stopped ones are released for redelivery."""
        in_flight, stats, clock = self._in_flight, self._context.stats, self._context.clock
        left = {leased.task.task_id: leased for leased in batch}
        try:
            async with contextlib.aclosing(self._runner.run([leased.task for leased in batch])) as results:
                async for result in results:
                    leased = left.pop(result.task.task_id)
                    if isinstance(result, RefusedTask):
                        in_flight.stop_running(leased)
                        await self._refuse(leased, result.error)
                        continue
                    stats.label(statistics.TASK_REFUSAL, "")
                    made_at_s = clock.monotonic_s()
                    await in_flight.finished.put(Finished(leased, result))
                    in_flight.stop_running(leased)
                    waited_s = clock.monotonic_s() - made_at_s
                    stats.add(statistics.WAIT_PUBLISH_S, waited_s / self._runner.flows_max)
        except TidegateError as error:
            # An engine that fails ends this actor, so that only others can run the tasks.
            for leased in left.values():
                in_flight.stop_running(leased)
                await self._fail(leased, error, retry_after_s=0.0)
            raise
        for leased in left.values():
            in_flight.stop_running(leased)
            await self._release(leased, delay_s=0.0)

    async def _refuse(self, leased: LeasedTask, error: TidegateError) -> None:
        self._context.stats.add(statistics.TASKS_FAILED)
        self._context.log.error("task_refused", task_id=leased.task.task_id, error=str(error))
        if not error.retryable:
            self._context.stats.label(statistics.TASK_REFUSAL, str(error))
        await self._fail(leased, error, retry_after_s=self._config.retry_delay_s)

    async def _fail(self, leased: LeasedTask, error: TidegateError, *, retry_after_s: float) -> None:
        """Release a task that failed here, or drop it with the error if enough deliveries of it ended without a result.

        While no place is free among the finished tasks it is released, and its next delivery decides.
        """
        if fails_for_good(leased.delivery.num_delivered, retryable=error.retryable):
            detail = f"failed at delivery {leased.delivery.num_delivered}: {error}"
            dropped = Finished(leased, failed_task(leased.task, detail=detail))
            if self._in_flight.finished.offer(dropped):
                self._context.stats.label(statistics.TASK_REFUSAL, str(error))
                return
        await self._release(leased, delay_s=retry_after_s)

    async def _evaluate(self, leased: LeasedTask) -> None:
        """Measure the served policy; a failed evaluation is released, one that takes too long is not repeated."""
        stats, clock = self._context.stats, self._context.clock
        started_at_s = clock.monotonic_s()
        repeat = False
        try:
            result = await self._evaluator.evaluate(leased.task)
            await publish_result(self._context, result)
        except TidegateError as error:
            stats.add(statistics.EVALUATIONS_FAILED)
            stats.label(statistics.EVALUATION_PROBLEM, f"{leased.task.required_version}: {error.what}")
            self._context.log.warning("evaluation_failed", task_id=leased.task.task_id, error=str(error))
            for_good = fails_for_good(
                leased.delivery.num_delivered,
                retryable=error.retryable,
                until_failed=EVALUATIONS_UNTIL_FAILED,
            )
            repeat = not isinstance(error, DeadlineError) and not for_good
        stats.add(statistics.EVALUATION_S, clock.monotonic_s() - started_at_s)
        self._in_flight.stop_running(leased)
        if repeat:
            await self._release(leased, delay_s=self._config.retry_delay_s)
        else:
            await leased.delivery.ack()
            self._in_flight.answered(leased)

    async def _release(self, leased: LeasedTask, *, delay_s: float) -> None:
        self._context.stats.add(statistics.TASKS_RELEASED)
        await leased.delivery.nak(delay_s)
        self._in_flight.answered(leased)

    async def _ring_at_drain(self) -> None:
        drain = self._context.drain
        await drain.wait()
        self._in_flight.wakeup.set()
        # Half of the drain for the engine to finish, the other half for releasing the remaining tasks.
        await asyncio.sleep(self._context.settings.drain_timeout_s / 2)
        self._runner.stop()

    # -- heartbeat -------------------------------------------------------------------------------------------------

    async def heartbeat(self) -> None:
        """Extends the leases of deliveries in flight; waits for time only."""
        period_s = self._config.ack_wait_s / HEARTBEATS_PER_ACK_WAIT
        drain = self._context.drain
        while not (drain.requested and not self._generating and not self._in_flight.unanswered()):
            if drain.requested:
                await asyncio.sleep(min(period_s, DRAIN_POLL_S))
            elif await drain.sleep(period_s):
                continue
            for leased in self._in_flight.unanswered():
                await leased.delivery.in_progress()
