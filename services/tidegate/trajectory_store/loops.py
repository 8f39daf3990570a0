"""The store's loops: intake of TRAJECTORIES, expiry, and what operators see."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from itertools import cycle

from tidegate.catalogue import trajectory_store as statistics
from tidegate.catalogue.telemetry import (
    ATTR_ENV,
    ATTR_LAG_BUCKET,
    ATTR_REASON,
    ATTR_RUN,
    ATTR_STAGE,
    ATTR_TASK,
    ATTR_TRAJECTORY,
    METRIC_QUEUE_OLDEST_AGE,
    METRIC_STAGE_DURATION,
    METRIC_STORE_RESIDENT,
    SPAN_APPEND,
)
from tidegate.core.batching import Drop
from tidegate.core.errors import NotFoundError, TidegateError, UnavailableError
from tidegate.core.ids import task_of
from tidegate.core.records import DROP_REASONS
from tidegate.runtime.consumer import Consumer, Delivery
from tidegate.runtime.policy_watch import PolicyWatch
from tidegate.runtime.races import is_set_within
from tidegate.runtime.replication.replica import CaughtUp
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.telemetry import is_sampled, messaging
from tidegate.trajectory_store.config import TrajectoryStoreConfig
from tidegate.trajectory_store.intake import ArrivedMessage, Refusal
from tidegate.trajectory_store.replay import reporting as replay_reporting
from tidegate.trajectory_store.residents import residents
from tidegate.trajectory_store.rows import Arrival
from tidegate.trajectory_store.servicer import TrajectoryStoreServicer
from tidegate.trajectory_store.store import Store
from tidegate.wire.subjects import SHARD

FETCH_WAIT_S = 1.0
# A full store checks this often; a commit or a drop frees capacity.
FULL_WAIT_S = 0.05
BACKOFF_S = 1.0
STATS_PERIOD_S = 0.25
# A trajectory may overtake the announcement of its version, which is read again after a second of silence. What is
# still unknown after so many deliveries never was a version.
EARLY_DELIVERIES_MAX = 6
EARLY_RETRY_S = 0.5
# Messages that follow each other faster than this are collected, no longer than for it, because a transaction costs as
# much as a message (measured: 190 us of CPU for one alone, 100 us each for sixteen together). One that comes alone
# never waits, nor do so many bytes: what a larger portion saves in transactions, it costs in memory that is no longer
# cached.
LINGER_S = 0.003
LINGER_BYTES_MAX = 512 * 1024


class IntakeLoop:
    """Consumes TRAJECTORIES: what is there goes through one transaction, and is acknowledged after it.

    Waits for messages, and for capacity below the residency limits, which a gradient or a drop frees.
    """

    def __init__(
        self,
        context: ServiceContext,
        config: TrajectoryStoreConfig,
        store: Store,
        policy: PolicyWatch,
        *,
        caught_up: CaughtUp,
    ) -> None:
        """Nothing is read before ``run``. ``policy`` reports versions before trajectories of them arrive."""
        self._policy = policy
        self._caught_up = caught_up
        self._context = context
        self._config = config
        self._store = store
        self._collected_at_s = 0.0
        self._shared_attributes = {
            ATTR_RUN: str(context.settings.run),
            ATTR_ENV: context.settings.workload.label,
        }

    async def run(self) -> None:
        """Take in until draining; what was fetched is finished first.

        The next messages are requested before these are stored, so that the broker sends while the ledger writes.
        """
        context = self._context
        consumer = await context.bus.consumer(context.topology.trajectory_durable(SHARD))
        fetching: asyncio.Task[list[Delivery]] | None = None
        try:
            while not context.drain.requested:
                if fetching is None:
                    sampled = self._store.sampled.listen()
                    room = self._store.room(self._config.fetch_messages_max)
                    if room == 0:
                        await self._wait_for_room(sampled)
                        continue
                    fetching = self._fetch(consumer, room)
                deliveries = await fetching
                fetching = None
                if deliveries and not context.drain.requested and (room := self._room_ahead()):
                    fetching = self._fetch(consumer, room)
                    await asyncio.sleep(0)  # lets the request leave
                await self._take(deliveries)
            if fetching is not None:
                await self._take(await fetching)
        finally:
            if fetching is not None:
                fetching.cancel()
            await consumer.close()

    async def _wait_for_room(self, sampled: asyncio.Event) -> None:
        """Until a batch of units is drawn, or it is time to look again."""
        clock = self._context.clock
        started_at_s = clock.monotonic_s()
        await is_set_within(sampled, timeout_s=FULL_WAIT_S)
        self._context.stats.add(statistics.FULL_S, clock.monotonic_s() - started_at_s)

    def _room_ahead(self) -> int:
        """Messages to request before those at hand are stored: none where what they bring sets the pace."""
        return 0 if self._store.replay is not None else self._store.room(self._config.fetch_messages_max)

    def _fetch(self, consumer: Consumer, most: int) -> asyncio.Task[list[Delivery]]:
        """At most one fetch in flight: two portions in memory."""
        return asyncio.create_task(self._collect(consumer, most))

    async def _collect(self, consumer: Consumer, most: int) -> list[Delivery]:
        """One portion, at most ``most`` messages; one that arrives alone is returned at once."""
        clock = self._context.clock
        arrived = await consumer.fetch(most, wait_s=FETCH_WAIT_S)
        now_s = clock.monotonic_s()
        ends_at_s = now_s + LINGER_S if now_s - self._collected_at_s < LINGER_S else now_s
        deliveries: list[Delivery] = []
        num_bytes = 0
        while arrived:
            deliveries += arrived
            num_bytes += sum(len(delivery.data) for delivery in arrived)
            left_s = ends_at_s - clock.monotonic_s()
            if len(deliveries) >= most or num_bytes >= LINGER_BYTES_MAX or left_s <= 0:
                break
            arrived = await consumer.fetch(most - len(deliveries), wait_s=left_s)
        self._collected_at_s = clock.monotonic_s()
        return deliveries

    async def _take(self, deliveries: Sequence[Delivery]) -> None:
        if not deliveries:
            return
        context = self._context
        received_at_s = context.clock.now_s()
        messages = [ArrivedMessage(delivery.data, delivery.headers, received_at_s) for delivery in deliveries]
        if self._policy.head is not None:
            self._store.ledger.note_head(self._policy.head.version)
        try:
            intake = self._store.ingest(messages, now_s=context.clock.now_s())
        except (OSError, UnavailableError) as error:
            # Unacknowledged, they are redelivered, until the disk has free space.
            context.log.warning("disk_not_writable", error=str(error), messages=len(messages))
            await context.drain.sleep(BACKOFF_S)
            return
        if not await self._is_kept():
            return
        refused = {id(refusal.message): refusal for refusal in intake.refused}
        judged = [
            (delivery, refused.get(id(message)))
            for delivery, message in zip(deliveries, messages, strict=True)
        ]
        await Delivery.ack_all([delivery for delivery, refusal in judged if refusal is None])
        for delivery, refusal in judged:
            if refusal is not None:
                await self._refuse(delivery, refusal)
        if context.telemetry.enabled:
            self._trace(intake.accepted, received_at_s=received_at_s)

    async def _is_kept(self) -> bool:
        """Whether the ledger's replica has what arrived; else the messages come again, and are duplicates."""
        while True:
            try:
                await self._caught_up()
            except UnavailableError:  # the log has it
                if await self._context.drain.sleep(BACKOFF_S):
                    return False
            else:
                return True

    async def _refuse(self, delivery: Delivery, refusal: Refusal) -> None:
        """Keep the message in QUARANTINE, drop its trajectories, and end its delivery."""
        context = self._context
        if refusal.is_early and delivery.num_delivered < EARLY_DELIVERIES_MAX:
            await delivery.nak(EARLY_RETRY_S)
            return
        if refusal.defect is not None:
            context.bus.failures.note_message(delivery.subject, refusal.defect)
        context.log.warning("message_refused", sequence=delivery.sequence, reason=refusal.reason)
        try:
            await context.bus.quarantine(
                context.service, delivery.data, reason=refusal.reason, headers=delivery.headers
            )
            self._store.refuse(refusal, now_s=context.clock.now_s())
            await self._caught_up()
        except TidegateError as error:  # whatever a broker says to it, one message ends no store
            context.log.warning("quarantine_postponed", sequence=delivery.sequence, error=str(error))
            return  # redelivered later
        await delivery.term()

    def _trace(self, accepted: Sequence[Arrival], *, received_at_s: float) -> None:
        context = self._context
        now_s = context.clock.now_s()
        parents = [
            parent
            for arrival in accepted
            for parent in zip(
                arrival.columns.trajectory_id, cycle(arrival.columns.trace_parent), strict=False
            )
        ]
        for trajectory_id, trace_parent in parents:
            if not is_sampled(trace_parent):
                continue
            context.telemetry.emit(
                SPAN_APPEND,
                parent=trace_parent,
                started_at_s=received_at_s,
                finished_at_s=now_s,
                attributes={
                    ATTR_TRAJECTORY: trajectory_id,
                    ATTR_TASK: task_of(trajectory_id),
                    **self._shared_attributes,
                    **messaging("process", "TRAJECTORIES", batch=len(parents)),
                },
                kind="consumer",
            )
        context.telemetry.observe(METRIC_STAGE_DURATION, now_s - received_at_s, {ATTR_STAGE: SPAN_APPEND})


class ExpiryLoop:
    """Drops what left the staleness budget, and holds the bounds that only time overruns. Waits for time."""

    def __init__(
        self,
        context: ServiceContext,
        config: TrajectoryStoreConfig,
        store: Store,
        policy: PolicyWatch,
        *,
        is_away: Callable[[], bool],
    ) -> None:
        """``policy`` reports versions between two leases. ``is_away``: whether answers wait for the replica."""
        self._is_away = is_away
        self._context = context
        self._config = config
        self._store = store
        self._policy = policy

    async def run(self) -> None:
        """Look once a period until draining."""
        context = self._context
        while not await context.drain.sleep(self._config.expiry_period_s):
            if self._policy.head is not None:
                self._store.ledger.note_head(self._policy.head.version)
            try:
                await self._expire_leases()
                self._store.expire(context.live.limits(), now_s=context.clock.now_s())
                self._store.tidy(now_s=context.clock.now_s())
            except (OSError, UnavailableError) as error:  # also of a file that cannot be removed
                context.log.warning("disk_not_writable", error=str(error))

    async def _expire_leases(self) -> None:
        clock = self._context.clock
        for lease in self._store.expire_leases(
            monotonic_s=clock.monotonic_s(), now_s=clock.now_s(), is_away=self._is_away()
        ):
            told = {
                "batch": lease.batch_id,
                "learner": lease.learner_id,
                "trajectories": len(lease.candidates),
                "timeout_s": self._config.lease_timeout_s,
            }
            self._context.log.warning("lease_expired", **told)
            with contextlib.suppress(TidegateError):  # the log has it, too
                await self._context.bus.event("lease_expired", told)


class ReportLoop:
    """Puts the ledger's counts on the stats board, and traces what was dropped. Waits for time."""

    def __init__(self, context: ServiceContext, store: Store) -> None:
        self._context = context
        self._store = store
        self._sampled_at_s = 0.0
        self._shared_attributes = {
            ATTR_RUN: str(context.settings.run),
            ATTR_ENV: context.settings.workload.label,
        }

    async def run(self) -> None:
        """Report until draining, and once more at the end."""
        while not await self._context.drain.sleep(STATS_PERIOD_S):
            self.report()
        self.report()

    def report(self) -> None:
        """The whole board from the present counts."""
        stats, ledger = self._context.stats, self._store.ledger
        tally = ledger.tally
        stats.set(statistics.AVAILABLE_TRAJECTORIES, tally.available)
        stats.set(statistics.LEASED_TRAJECTORIES, tally.leased)
        stats.set(statistics.ACCEPTED, tally.accepted)
        stats.set(statistics.TRAINED, tally.trained)
        stats.set(statistics.DROPPED, tally.dropped.total())
        for reason in DROP_REASONS:
            stats.set(statistics.DROPPED_BECAUSE.member(reason), tally.dropped[reason])
        stats.set(statistics.DUPLICATES, tally.duplicates)
        stats.set(statistics.QUARANTINED, tally.quarantined)
        stats.set(statistics.REVIVED, tally.revived)
        stats.set(statistics.LEASES_EXPIRED, tally.leases_expired)
        stats.set(statistics.RESIDENT_BYTES, ledger.frames.num_bytes)
        stats.set(statistics.UPLOADS_BYTES, self._store.uploads.num_bytes)
        if self._store.replay is not None:
            replay_reporting.report(self._store.replay, ledger, stats, period_s=STATS_PERIOD_S)
        stats.label(statistics.HEAD, str(ledger.head) if ledger.head is not None else "")
        if self._context.telemetry.enabled:
            for drop in self._store.recent_drops:
                self._trace(drop)
            self._report_residents()
        self._store.recent_drops.clear()

    def _report_residents(self) -> None:
        """How far behind what waits already is, as often as it is exported."""
        context, ledger = self._context, self._store.ledger
        now_s = context.clock.now_s()
        if ledger.head is None or now_s - self._sampled_at_s < context.settings.telemetry.metric_period_s:
            return
        self._sampled_at_s = now_s
        waiting = residents(ledger.pool, head=ledger.head, tree=ledger.tree, now_s=now_s)
        for bucket, number in waiting.by_lag.items():
            context.telemetry.observe(METRIC_STORE_RESIDENT, number, {ATTR_LAG_BUCKET: bucket})
        context.telemetry.observe(METRIC_QUEUE_OLDEST_AGE, waiting.oldest_age_s, {})

    def _trace(self, drop: Drop) -> None:
        """A dropped trajectory's trace is kept whole: what was not sampled is rebuilt from its provenance."""
        telemetry = self._context.telemetry
        try:
            status = self._store.trajectory(drop.candidate.trajectory_id)
        except NotFoundError:
            return
        parent = status.trajectory.trace_parent
        identity = {ATTR_TRAJECTORY: status.trajectory.trajectory_id, **self._shared_attributes}
        *earlier, append = status.stages
        deferred = not is_sampled(parent)
        if deferred:
            if not telemetry.may_defer():
                return
            parent = telemetry.rebuild(earlier, parent=parent, attributes=identity)
        telemetry.emit(
            append.stage,
            parent=parent,
            started_at_s=append.started_at_s,
            finished_at_s=append.finished_at_s,
            attributes={**identity, ATTR_REASON: drop.reason},
            error=drop.detail,
            deferred=deferred,
        )


class DrainLoop:
    """Ends the long polls when the service drains, so that it can stop. Waits for draining."""

    def __init__(self, context: ServiceContext, servicer: TrajectoryStoreServicer) -> None:
        self._context = context
        self._servicer = servicer

    async def run(self) -> None:
        """Wait, then wake every poll."""
        await self._context.drain.wait()
        self._servicer.stop_waiting()
