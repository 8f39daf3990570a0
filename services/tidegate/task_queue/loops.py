"""The loops of the task queue. Each gathers one snapshot, decides once, and acts.

``admit``: consumes limits, the head and the journal; produces tasks in the journal and on TASKS; waits for capacity;
unblocked by outcomes, a new head or new limits, which set one event, so nothing on this path sleeps: at ``max_lag`` 0
every learner step waits for it.
``outcomes``: consumes the store's outcome log from a persisted cursor; waits for the store.
``follow_policy``, ``follow_limits``: wake ``admit``; level-triggered, so a missed message costs a refresh period.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from tidegate.catalogue import task_queue as statistics
from tidegate.catalogue.telemetry import (
    ATTR_ATTEMPT,
    ATTR_CAUSE,
    ATTR_DECISION,
    ATTR_ENV,
    ATTR_TASK,
    METRIC_ADMISSION_DECISIONS,
    SPAN_SEND_TASKS,
    SPAN_TASK_LEASE,
)
from tidegate.core.admission import Admit, Delay, Limits
from tidegate.core.curriculum import CurriculumState
from tidegate.core.errors import TidegateError, UnavailableError
from tidegate.core.ids import PolicyVersion
from tidegate.core.mixed_curriculum import PromptChoice
from tidegate.core.records import Task
from tidegate.core.staleness import LineageTree
from tidegate.runtime.policy_watch import PolicyWatch
from tidegate.runtime.races import ended_within, is_set_within, run_until
from tidegate.runtime.replication.replica import CaughtUp, on_disk
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.task_secret import TaskSecrets
from tidegate.runtime.telemetry import is_sampled, messaging
from tidegate.task_queue.config import TaskQueueConfig
from tidegate.task_queue.journal import Journal, Unpublished
from tidegate.task_queue.mix import MixCounts
from tidegate.task_queue.state import (
    SEGMENT,
    AdmittedUnder,
    Prompt,
    Snapshot,
    Workload,
    decide,
    effective_limits,
    plan_tasks,
    without_announced,
)
from tidegate.wire.clients.trajectory_store import Outcome, TrajectoryStoreClient
from tidegate.wire.convert import task_from_bytes, with_task_key
from tidegate.wire.subjects import HEADER_TRACE_PARENT, POOL
from tidegate.wire.task_proof import task_key

# One transaction and one burst of publishes; capacity beyond this is used in the next turn of the loop.
TASKS_PER_TURN_MAX = 1024
# Everything that can change a decision sets the event; the tick covers a missed event.
TICK_S = 1.0
# How long a queue whose journal holds no limits waits for what CONTROL holds, before it admits by the run file's.
FIRST_LIMITS_DEADLINE_S = 10.0

_LIMITS_DECODER = msgspec.json.Decoder(Limits)


class TaskSource:
    """Where tasks come from: prompts of a dataset, or nothing but seeds for segments."""

    def __init__(self, prompts: Sequence[Prompt], curriculum: PromptChoice | None) -> None:
        """An empty dataset has no curriculum: segments."""
        self._prompts = prompts
        self._curriculum = curriculum

    def take(self, state: CurriculumState, *, count: int) -> tuple[list[Prompt], CurriculumState]:
        """The next ``count`` problems, and the curriculum after them."""
        if self._curriculum is None:
            return [SEGMENT] * count, msgspec.structs.replace(state, num_drawn=state.num_drawn + count)
        indices, after = self._curriculum.draw(state, count=count)
        return [self._prompts[index] for index in indices], after

    def learn(self, state: CurriculumState, outcomes: list[Outcome]) -> CurriculumState:
        """The curriculum after the rewards that arrived."""
        if self._curriculum is not None:
            for outcome in outcomes:
                if outcome.state == "accepted" and outcome.reward is not None:
                    state = self._curriculum.observe(
                        state, bin_name=outcome.curriculum_bin, reward=outcome.reward
                    )
        return state


class TaskQueue:
    """The loops' shared state: the journal, the newest limits and head, and the event that wakes admission."""

    def __init__(
        self,
        context: ServiceContext,
        config: TaskQueueConfig,
        *,
        journal: Journal,
        workload: Workload,
        source: TaskSource,
        store: TrajectoryStoreClient,
        policy: PolicyWatch,
        ceiling: Limits,
        secrets: Callable[[], TaskSecrets] | None = None,
        caught_up: CaughtUp = on_disk,
    ) -> None:
        """``ceiling``: the run file's limits, which hold until admission publishes, and which it cannot exceed.

        ``secrets``: of which the current one signs tasks; None leaves them without a key. ``caught_up``: awaited before
        a task is published, and before the store is told how far the journal is.
        """
        self._secrets = secrets
        self.caught_up = caught_up
        self.context = context
        self.config = config
        self.journal = journal
        self.workload = workload
        self.store = store
        self.policy = policy
        self.retired = False
        # Since when outcomes have been coming in without a failure, on the monotonic clock: a wall clock that steps
        # must not make a task late.
        self.reachable_since_s = context.clock.monotonic_s()
        # The newest task a trajectory arrived from: everything before it was delivered.
        self.arrived_seq = 0
        self._source = source
        self._mix = MixCounts(context.stats, tasks_max=_tasks_max(ceiling))
        self._ceiling = ceiling
        self._limits = effective_limits(ceiling, journal.limits)
        # A pause or a tighter limit may have been published before this queue first started.
        self._limits_known = asyncio.Event()
        self._limits_heard = 0
        if journal.limits is not None:
            self._limits_known.set()
        self._admitted_under = AdmittedUnder()
        self._wake = asyncio.Event()
        self._shown = ""

    @property
    def secret(self) -> bytes | None:
        """What tasks are signed with now; None leaves them without a key."""
        return None if self._secrets is None else self._secrets().current.encode()

    # -- admission -------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Everything a decision is made from, at this moment."""
        head = self.policy.head
        return Snapshot(
            limits=self._limits,
            counts=self.journal.counts,
            trained_at=self.journal.trained_at,
            unpublished_tasks=self.journal.unpublished_tasks,
            head=head.version if head else None,
            tree=head.tree if head else LineageTree(),
            retired=self.retired,
            behind=self._behind(head.version) if self._limits.paced and head else 0,
        )

    def _behind(self, head: PolicyVersion) -> int:
        oldest = self.journal.oldest_running_seq()
        if oldest == self.journal.next_seq:
            return 0
        self._admitted_under = self._admitted_under.since(oldest)
        return self._admitted_under.behind(oldest, head=head)

    async def admit(self) -> None:
        """Publish what is journaled, then journal what the limits allow, until draining."""
        with suppress(TimeoutError):
            limits_known = run_until(self.context.drain.wait(), self._limits_known.wait())
            await ended_within(limits_known, timeout_s=FIRST_LIMITS_DEADLINE_S)
        while not self.context.drain.requested:
            self._wake.clear()
            if self.journal.unpublished_tasks and not await self._publish_journaled():
                await self.context.drain.sleep(self.config.retry_backoff_s)
                continue
            snapshot = self.snapshot()
            decision = decide(snapshot, group_size=self.workload.group_size)
            self._show_decision(decision)
            if isinstance(decision, Admit):
                self._journal_tasks(snapshot, count=decision.count)
                continue
            # Also for a new head: an update that was just announced no longer counts as unannounced.
            self._show_counts(snapshot)
            await is_set_within(self._wake, timeout_s=TICK_S)

    def change_ceiling(self, ceiling: Limits) -> None:
        """The run file's limits changed. Lower ones hold from now on; wider ones once admission publishes them."""
        self._ceiling = ceiling
        self._mix.tasks_max = _tasks_max(ceiling)
        self._take_limits(effective_limits(ceiling, self.journal.limits))

    def wake(self) -> None:
        """Something changed that a decision depends on."""
        self._wake.set()

    def _journal_tasks(self, snapshot: Snapshot, *, count: int) -> None:
        num_tasks = min(TASKS_PER_TURN_MAX, count // self.workload.group_size)
        prompts, curriculum = self._source.take(self.journal.curriculum, count=num_tasks)
        tasks = plan_tasks(
            snapshot,
            self.workload,
            first_seq=self.journal.next_seq,
            prompts=prompts,
            trace_parents=[self.context.telemetry.root() for _ in prompts],
            now_s=self.context.clock.now_s(),
        )
        if snapshot.limits.paced and snapshot.head is not None:
            self._admitted_under = self._admitted_under.note(self.journal.next_seq, step=snapshot.head.step)
        self._mix.admitted(tasks, first_seq=self.journal.next_seq)
        self.journal.admit(tasks, curriculum=curriculum)
        self.context.telemetry.count(
            METRIC_ADMISSION_DECISIONS, len(tasks), {ATTR_DECISION: "admit", ATTR_CAUSE: ""}
        )
        self._show_counts(self.snapshot())

    async def _publish_journaled(self) -> bool:
        """Publish what TASKS has not acknowledged; the same message ids as before, so nothing is admitted twice.

        In bursts, oldest first: a burst that fails ends the attempt, so a full stream holds back one burst, not all.
        """
        try:
            await self.caught_up()
        except UnavailableError:  # the log has it
            return False
        waiting = self.journal.unpublished(limit=TASKS_PER_TURN_MAX)
        width = self.config.publish_concurrency
        for start in range(0, len(waiting), width):
            burst = waiting[start : start + width]
            failures = await asyncio.gather(*(self._publish(task) for task in burst))
            published = [task.seq for task, failure in zip(burst, failures, strict=True) if failure is None]
            self.journal.mark_published(published)
            self.context.stats.set(statistics.TASKS_PUBLISHED, self.journal.published_tasks)
            if len(published) < len(burst):
                error = next(failure for failure in failures if failure is not None)
                self.context.log.warning(
                    "publish_failed", count=len(burst) - len(published), error=str(error)
                )
                self.context.stats.add(statistics.PUBLISH_FAILURES, len(burst) - len(published))
                return False
        return True

    async def _publish(self, unpublished: Unpublished) -> TidegateError | None:
        """Publish one task; returns why it could not be done now."""
        task = task_from_bytes(unpublished.spec)
        sent_at_s = self.context.clock.now_s()
        try:
            await self.context.bus.publish(
                self.context.topology.tasks(POOL),
                self._signed(task, unpublished.spec),
                message_id=f"{unpublished.task_id}:{unpublished.attempt}",
                headers={HEADER_TRACE_PARENT: task.trace_parent},
                deadline_s=self.config.publish_deadline_s,
            )
        except TidegateError as error:
            if not error.retryable:
                raise
            return error
        if is_sampled(task.trace_parent):
            self._trace(task, sent_at_s=sent_at_s)
        return None

    def _signed(self, task: Task, spec: bytes) -> bytes:
        """A task as it is published: with its key, which the journal does not hold."""
        secret = self.secret
        return spec if secret is None else with_task_key(spec, task_key(task, secret))

    def _trace(self, task: Task, *, sent_at_s: float) -> None:
        """The first span of a trajectory's trace, and the message that carries the task to an actor."""
        telemetry, now_s = self.context.telemetry, self.context.clock.now_s()
        leased = telemetry.emit(
            SPAN_TASK_LEASE,
            parent=task.trace_parent,
            started_at_s=task.admitted_at_s,
            finished_at_s=now_s,
            attributes={ATTR_TASK: task.task_id, ATTR_ENV: task.env_id, ATTR_ATTEMPT: task.attempt},
            kind="server",
            as_root=True,
        )
        telemetry.emit(
            SPAN_SEND_TASKS,
            parent=leased,
            started_at_s=sent_at_s,
            finished_at_s=now_s,
            attributes=messaging("send", "TASKS"),
            kind="producer",
        )

    def _show_decision(self, decision: Admit | Delay) -> None:
        """What holds admission back, in stats; as a metric only when it changed."""
        stats = self.context.stats
        stats.set(statistics.ADMISSION_DELAY, float(isinstance(decision, Delay)))
        shown = decision.reason if isinstance(decision, Delay) else "admitting"
        if shown == self._shown:
            return
        self._shown = shown
        stats.label(statistics.ADMISSION_STATE, shown)
        if isinstance(decision, Delay):
            reason = {ATTR_DECISION: "delay", ATTR_CAUSE: shown}
            self.context.telemetry.count(METRIC_ADMISSION_DECISIONS, 1, reason)

    def _show_counts(self, snapshot: Snapshot) -> None:
        """Work in flight, in stats and metrics; after every change of the journal."""
        stats = self.context.stats
        counts = snapshot.counts
        stats.set(statistics.ADMITTED, counts.admitted)
        stats.set(statistics.IN_FLIGHT_TRAJECTORIES, counts.in_flight)
        stats.set(statistics.RUNNING_TRAJECTORIES, counts.running)
        stats.set(statistics.UNANNOUNCED_TRAJECTORIES, snapshot.flow().unannounced)
        stats.set(statistics.BEHIND_VERSIONS, snapshot.behind)

    # -- what wakes it ---------------------------------------------------------------------------------------------

    async def outcomes(self) -> None:
        """Follow the store's outcome log; an outcome ends the poll at once and wakes admission."""
        store_away = False
        while not self.context.drain.requested:
            try:
                answer = await run_until(self.context.drain.wait(), self._more_outcomes())
            except TidegateError as error:
                if not error.retryable:
                    raise
                if not store_away:
                    self.context.log.warning("store_unreachable", error=str(error))
                store_away = True
                self.context.stats.add(statistics.STORE_FAILURES)
                await self.context.drain.sleep(self.config.retry_backoff_s)
                self.reachable_since_s = self.context.clock.monotonic_s()
                continue
            if store_away:
                self.context.log.info("store_reachable")
            store_away = False
            # A page may hold nothing and still move the cursor, such as the last one of the present states.
            if answer is not None and (answer[0] or answer[1] != self.journal.cursor):
                self.take_outcomes(*answer)

    async def _more_outcomes(self) -> tuple[list[Outcome], int]:
        """Behind the cursor, up to which the store then forgets them."""
        await self.caught_up()
        return await self.store.watch_outcomes(
            self.journal.cursor, limit=self.config.outcomes_limit, max_wait_s=self.config.outcomes_wait_s
        )

    def take_outcomes(self, outcomes: list[Outcome], next_cursor: int) -> None:
        """Follow one piece of the outcome log."""
        head, journal = self.policy.head, self.journal
        ahead = journal.trained_at
        if head is not None:
            ahead = without_announced(ahead, head=head.version, tree=head.tree)
        applied = journal.apply(
            outcomes,
            next_cursor=next_cursor,
            curriculum=self._source.learn(journal.curriculum, outcomes),
            trained_at=ahead,
        )
        self._mix.ended(applied.ended)
        self.arrived_seq = max(self.arrived_seq, applied.newest_seq)
        if applied.unknown:
            self.context.log.warning("outcomes_of_unknown_trajectories", count=applied.unknown)
            self.context.stats.add(statistics.UNKNOWN_OUTCOMES, applied.unknown)
        self._show_counts(self.snapshot())
        self.wake()

    async def follow_policy(self) -> None:
        """Wake admission at each new head."""
        seen = None
        while not self.context.drain.requested:
            head = await self.policy.changed(seen, timeout_s=TICK_S)
            if head is not None:
                seen = head.version
                self.wake()

    async def follow_limits(self) -> None:
        """Hold to the newest limits on CONTROL; the last ones hold while admission is away (I9)."""
        context = self.context
        subject = context.topology.control(context.service)
        await context.bus.subscribe(subject, self._hear_limits)
        before = self._limits_heard
        while not context.drain.requested:
            heard = self._limits_heard
            # Limits are heard before the stream's copies have agreed on them: it is read where none came lately.
            if heard == before:
                try:
                    stored = await context.bus.last(context.topology.stream("CONTROL"), subject)
                except TidegateError as error:
                    if not error.retryable:
                        raise
                else:
                    if stored is not None and heard == self._limits_heard:
                        self._receive_limits(stored.data)
                    self._limits_known.set()
            before = heard
            await context.drain.sleep(self.config.limits_refresh_s)

    async def _hear_limits(self, data: bytes, _headers: dict[str, str]) -> None:
        self._limits_heard += 1
        self._receive_limits(data)

    def _receive_limits(self, data: bytes) -> None:
        try:
            published = _LIMITS_DECODER.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.context.log.warning("limits_refused", error=str(error))
            self.context.stats.add(statistics.LIMITS_REFUSED)
            return
        self._take_limits(effective_limits(self._ceiling, published))
        self._limits_known.set()

    def _take_limits(self, limits: Limits) -> None:
        if limits != self._limits:
            self._limits = limits
            self.context.log.info("limits_changed", **msgspec.structs.asdict(limits))
            self.wake()
        if limits != self.journal.limits:
            try:
                self.journal.keep_limits(limits)
            except TidegateError as error:  # in force until a restart; admission publishes them again
                self.context.log.warning("limits_not_kept", error=str(error))


def _tasks_max(ceiling: Limits) -> int:
    """As many tasks as can be in flight."""
    return ceiling.max_in_flight() + ceiling.max_running
