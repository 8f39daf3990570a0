"""The environment worker's loops: score groups, keep their deliveries alive, end idle sessions.

A group is held from its delivery until the publish of its scored records was acknowledged, or, when it can never be
scored, until it is kept in QUARANTINE and its trajectories are reported dropped. At most ``slots`` groups are held.
"""

import asyncio
from collections.abc import Sequence

from tidegate.catalogue import environment as statistics
from tidegate.catalogue.telemetry import (
    ATTR_ENV,
    ATTR_REWARD,
    ATTR_RUN,
    ATTR_STAGE,
    ATTR_TRAJECTORY,
    METRIC_STAGE_DURATION,
    SPAN_SCORE,
)
from tidegate.core.deliveries import fails_for_good, is_spent, spent_detail
from tidegate.core.errors import RecordError, TidegateError
from tidegate.core.ids import TrajectoryId, task_of
from tidegate.core.records import DropReason, StageTiming, Trajectory
from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.judgements import why_failed
from tidegate.environment.rewards import Rewards
from tidegate.environment.sessions import SessionTable
from tidegate.environment.state import (
    STAGE_SCORE,
    answer_of,
    check_group,
    resolve_failure,
    scored,
    with_trace,
)
from tidegate.environment.tasks.port import Score
from tidegate.runtime.consumer import Delivery
from tidegate.runtime.drop_reports import report_dropped
from tidegate.runtime.outbox import Outbox
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.telemetry import is_sampled, messaging
from tidegate.wire.bounds import DETAIL_CHARS_MAX, IDS_MAX, is_id
from tidegate.wire.clients.trajectory_store import Dropped, TrajectoryStoreClient
from tidegate.wire.frame import open_frame
from tidegate.wire.subjects import HEADER_REFERENCE, HEADER_TASK_PROOF, HEADER_TRAJECTORY_IDS
from tidegate.wire.validate import validate_frame

FETCH_WAIT_S = 0.5
# How soon a draining service notices that the last piece of its work was answered.
DRAIN_POLL_S = 0.05
SWEEPS_PER_IDLE_TIME = 4
SWEEP_WAIT_MAX_S = 5.0
HEARTBEATS_PER_ACK_WAIT = 3
# A message that could not be quarantined is redelivered after this long.
QUARANTINE_RETRY_S = 2.0
# Before a group at which the worker's own code failed is delivered again.
DEFECT_RETRY_S = 2.0


class ScoreLoop:
    """Consumes ROLLOUTS, produces TRAJECTORIES. Waits for rollouts and for a free slot; a finished group frees one."""

    def __init__(self, context: ServiceContext, config: EnvironmentConfig, rewards: Rewards) -> None:
        self._context = context
        self._config = config
        self._rewards = rewards
        self._failures = context.bus.failures
        self._label = context.settings.workload.label
        self._envs = frozenset(context.settings.workload.weights())
        settings = context.settings
        self._overlong = settings.long_tail.overlong_rule(length_max=settings.workload.sampler.max_new_tokens)
        self._store = TrajectoryStoreClient(context.channel("trajectory_store"))
        self._outbox = Outbox(context, self._store)
        self._held: dict[int, Delivery] = {}
        self._slot_freed = asyncio.Event()

    async def run(self) -> None:
        """Score until draining; then finish what is held."""
        context, config = self._context, self._config
        consumer = await context.bus.consumer(context.topology.rollout_durable(self._label))
        async with asyncio.TaskGroup() as group:
            try:
                while not context.drain.requested:
                    free = config.slots - len(self._held)
                    if free <= 0:
                        self._slot_freed.clear()
                        await self._slot_freed.wait()
                        continue
                    idle = not self._held
                    started_at_s = context.clock.monotonic_s()
                    deliveries = await consumer.fetch(free, wait_s=FETCH_WAIT_S)
                    if idle:
                        context.stats.add(statistics.WAIT_S, context.clock.monotonic_s() - started_at_s)
                    for delivery in deliveries:
                        self._held[delivery.sequence] = delivery
                        group.create_task(self._hold(delivery))
            finally:
                await consumer.close()

    async def heartbeat(self) -> None:
        """Keeps held groups from going to another worker; waits for time only."""
        period_s = self._config.ack_wait_s / HEARTBEATS_PER_ACK_WAIT
        drain = self._context.drain
        while not drain.requested or self._held:
            if drain.requested:
                await asyncio.sleep(min(period_s, DRAIN_POLL_S))
            elif await drain.sleep(period_s):
                continue
            for delivery in list(self._held.values()):
                await delivery.in_progress()

    async def _hold(self, delivery: Delivery) -> None:
        try:
            await self._handle(delivery)
        finally:
            self._held.pop(delivery.sequence, None)
            self._slot_freed.set()

    async def _handle(self, delivery: Delivery) -> None:
        try:
            records = self._failures.read(delivery.subject, lambda: self._decode(delivery))
        except RecordError as error:
            await self._refuse(delivery, error)
            return
        if is_spent(delivery.num_delivered):
            detail = f"never scored: {spent_detail(delivery.num_delivered)}"
            await self._end_failed(delivery, records, detail=detail)
            return
        try:
            await self._score(delivery, records)
        except (TidegateError, MemoryError):
            raise
        except Exception as error:  # a defect at one group ends no worker: it would meet the group again
            self._failures.note_message(delivery.subject, error)
            if fails_for_good(delivery.num_delivered, retryable=False):
                await self._end_failed(delivery, records, detail=_defect_detail(error))
            else:
                await delivery.nak(DEFECT_RETRY_S)

    async def _score(self, delivery: Delivery, records: list[Trajectory]) -> None:
        stats, clock = self._context.stats, self._context.clock
        started_at_s = clock.now_s()
        judgements = await self._rewards.judge(records[0].env_id, [answer_of(record) for record in records])
        stats.add(statistics.BUSY_S, clock.now_s() - started_at_s)
        await self._wait_out(records, started_at_s)
        stage = StageTiming(STAGE_SCORE, self._context.instance, started_at_s, clock.now_s())
        stats.set(statistics.CACHE_HITS, self._rewards.cache_hits_total)
        scores: list[Score] = []
        for judgement in judgements:
            score = resolve_failure(judgement, on_error=self._config.on_error)
            if score is None:
                detail = f"failed verifier, and environment.on_error is drop: {why_failed(judgement)}"
                detail = detail[:DETAIL_CHARS_MAX]
                await self._end_failed(delivery, records, detail=detail)
                return
            scores.append(score)
        rewarded = scored(records, scores, stage=stage)
        if self._overlong is not None:
            rewarded = [self._overlong.applied(record) for record in rewarded]
        await self._outbox.send_trajectories(
            self._traced(rewarded, stage), of=delivery.headers.get(HEADER_TASK_PROOF, "")
        )
        await delivery.ack()
        stats.add(statistics.SCORED, len(records))

    async def _end_failed(self, delivery: Delivery, records: list[Trajectory], *, detail: str) -> None:
        """Drop a group as failed; the message is acknowledged once the ledger has it."""
        ids = [record.trajectory_id for record in records]
        if await self._drop(ids, "failed", detail, delivery):
            await delivery.ack()
        else:
            await delivery.nak()

    async def _wait_out(self, records: list[Trajectory], started_at_s: float) -> None:
        """Wait until scoring has taken ``score_latency``, or until draining."""
        wanted_s = self._rewards.delay_s(records[0].task_id, num=len(records))
        left_s = wanted_s - (self._context.clock.now_s() - started_at_s)
        if left_s > 0.0:
            await self._context.drain.sleep(left_s)
            self._context.stats.add(statistics.WAIT_LATENCY_S, left_s)

    def _decode(self, delivery: Delivery) -> list[Trajectory]:
        """The group of a message.

        Raises:
            RecordError: it is none, or not one that this run's policies could have produced.
        """
        if HEADER_REFERENCE in delivery.headers:
            raise RecordError(
                "A rollout message holds a reference", why="large groups are scored by a call, then stored"
            )
        frame = open_frame(delivery.data)
        validate_frame(frame, run_id=self._context.settings.run)
        records = frame.trajectories()
        check_group(records, envs=self._envs)
        return records

    def _traced(self, records: list[Trajectory], stage: StageTiming) -> list[Trajectory]:
        telemetry = self._context.telemetry
        if not telemetry.enabled:
            return records
        telemetry.observe(
            METRIC_STAGE_DURATION,
            stage.finished_at_s - stage.started_at_s,
            {ATTR_STAGE: STAGE_SCORE},
        )
        labels = {ATTR_RUN: self._context.settings.run, ATTR_ENV: records[0].env_id}
        traced: list[Trajectory] = []
        for record in records:
            if not is_sampled(record.trace_parent):
                traced.append(record)
                continue
            trace_parent = telemetry.emit(
                SPAN_SCORE,
                parent=record.trace_parent,
                started_at_s=stage.started_at_s,
                finished_at_s=stage.finished_at_s,
                attributes={
                    **labels,
                    **messaging("process", "ROLLOUTS", batch=len(records)),
                    ATTR_TRAJECTORY: record.trajectory_id,
                    ATTR_REWARD: record.reward or 0.0,
                },
                kind="consumer",
            )
            traced.append(with_trace(record, trace_parent))
        return traced

    async def _refuse(self, delivery: Delivery, error: RecordError) -> None:
        """Quarantine an invalid group and drop its trajectories; if either fails, the broker redelivers the message."""
        context = self._context
        context.stats.add(statistics.QUARANTINED)
        ids = delivery.headers.get(HEADER_TRAJECTORY_IDS, "")
        context.log.warning("rollout_quarantined", trajectories=ids, error=str(error))
        try:
            await context.bus.quarantine(
                context.service,
                delivery.data,
                reason=str(error),
                headers={HEADER_TRAJECTORY_IDS: ids} if ids else {},
            )
        except TidegateError as failure:
            context.log.warning("quarantine_failed", error=str(failure))
            await delivery.nak(QUARANTINE_RETRY_S)
            return
        named = [TrajectoryId(name) for name in ids.split(",")[:IDS_MAX] if is_id(name)]
        is_dropped = await self._drop(named, "invalid", str(error), delivery)
        await (delivery.term() if is_dropped else delivery.nak())

    async def _drop(
        self, ids: Sequence[TrajectoryId], reason: DropReason, detail: str, delivery: Delivery
    ) -> bool:
        """Report trajectories as dropped; False if draining began while the store was away.

        Those of a message whose sender does not hold their task end elsewhere: the store refuses the report.
        """
        context = self._context
        dropped = [Dropped(trajectory_id, reason, detail) for trajectory_id in ids]
        about = task_of(ids[0]) if ids else ""
        proof = delivery.headers.get(HEADER_TASK_PROOF, "")
        try:
            if not await report_dropped(context, self._store, dropped, task_id=about, proof=proof):
                return False
        except RecordError as refusal:
            context.log.warning("drop_refused", task_id=about, error=str(refusal))
            return True
        context.stats.add(statistics.DROPPED_BECAUSE.member(reason), len(dropped))
        return True


def _defect_detail(error: Exception) -> str:
    """Why a group is dropped at which the worker's own code failed."""
    return f"scoring failed by a {type(error).__name__}, a defect of the environment worker: {error}"[
        :DETAIL_CHARS_MAX
    ]


class SweepLoop:
    """Ends idle sessions. Waits for time only."""

    def __init__(self, context: ServiceContext, sessions: SessionTable, *, idle_s: float) -> None:
        """``idle_s``: seconds without a call that end a session."""
        self._context = context
        self._sessions = sessions
        self._period_s = min(idle_s / SWEEPS_PER_IDLE_TIME, SWEEP_WAIT_MAX_S)

    async def run(self) -> None:
        """Sweep until draining."""
        stats = self._context.stats
        while not await self._context.drain.sleep(self._period_s):
            await self._sessions.sweep()
            stats.set(statistics.SESSIONS, self._sessions.num_open)
            stats.set(statistics.SESSIONS_REFUSED, self._sessions.refused_total)
            stats.set(statistics.SESSIONS_IDLED, self._sessions.idled_total)
