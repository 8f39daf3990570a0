"""The sweep: drops what no actor will finish, so that every admitted trajectory ends in the ledger (I2).

Consumes: the journal's open work; reports of actors (for what was delivered); the store's outcomes (for what arrived).
Produces: ``failed`` and ``retired`` drops at the store, which come back as outcomes. It also packs the journal's oldest
rows, so that the file stays small however long the run.
Waits for: time. Level-triggered: the same tick twice drops the same ids, and dropping twice changes nothing.
"""

import asyncio
from collections import deque

from tidegate.catalogue import task_queue as statistics
from tidegate.core.errors import RecordError, TidegateError
from tidegate.core.ids import TrajectoryId
from tidegate.core.records import DropReason
from tidegate.runtime.stats_reports import follow_stats
from tidegate.task_queue.loops import TaskQueue
from tidegate.task_queue.starvation import ActorReports
from tidegate.task_queue.state import Deliveries, lost_before
from tidegate.wire.clients.trajectory_store import Dropped
from tidegate.wire.stats import ServiceStats
from tidegate.wire.task_proof import proof_of_queue

# Ids a call: one transaction of the store, a few milliseconds.
DROP_BATCH = 500
# Transactions of packing a sweep, which bounds how long it takes. At a period of 2 s they pack 16,000 segments, or
# 65,000 trajectories in groups, a second: several times what a run admits.
PACKS_MAX = 16
# Minutes of samples; reports arrive twice a second.
SAMPLES_KEPT = 64
# Retire answers well within the five seconds that the end of a run waits for it; the loop drops the rest.
RETIRE_DEADLINE_S = 4.0


class Sweep:
    """Finds lost tasks, and retires the run on request."""

    def __init__(self, queue: TaskQueue) -> None:
        """No delivery is known yet: after a restart the deadline of every open task starts again."""
        self._queue = queue
        self._deliveries = Deliveries()
        self._actors = ActorReports()
        # What was published by when, one entry a sample; a report older than all of them proves nothing.
        self._published: deque[tuple[float, int]] = deque(maxlen=SAMPLES_KEPT)
        self._retired_because = ""

    async def run(self) -> None:
        """Sweep every ``sweep_period_s`` until draining."""
        queue, context = self._queue, self._queue.context
        await follow_stats(context.bus, context.topology, self._receive_stats, on_refused=self._count_refused)
        while not await context.drain.sleep(queue.config.sweep_period_s):
            await self._pack()
            self._note_deliveries()
            try:
                await self._drop_lost()
                if queue.retired:
                    await self._drop_retired()
            except TidegateError as error:
                if not error.retryable:
                    raise
                context.log.warning("drop_unarrived_failed", error=str(error))

    async def retire(self, *, reason: str) -> None:
        """Stop admitting for good, and drop what never arrived at the store. Later arrivals are duplicates.

        Raises:
            UnavailableError: the store is away; admission has stopped, and the sweep drops the rest once it is back.
        """
        queue = self._queue
        if not queue.retired:
            queue.retired = True
            self._retired_because = reason or "the run was retired"
            queue.journal.set_retired(retired=True)
            queue.context.log.info("run_retired", reason=self._retired_because)
        queue.wake()
        try:
            async with asyncio.timeout(RETIRE_DEADLINE_S):
                await self._drop_retired()
        except TimeoutError:
            queue.context.log.warning("retire_continues", running=queue.journal.counts.running)

    async def _pack(self) -> None:
        """Pack rows beyond the bound; between two transactions the other loops run."""
        for _ in range(PACKS_MAX):
            if not self._queue.journal.pack(rows_kept_max=self._queue.config.rows_kept_max):
                break
            await asyncio.sleep(0)

    def _note_deliveries(self) -> None:
        """Everything before an arrival was delivered; so was all that was published before an actor had no task."""
        queue = self._queue
        now_s = queue.context.clock.monotonic_s()
        before = [seq for at_s, seq in self._published if at_s <= self._actors.starved_from_s]
        if before:
            self._deliveries = self._deliveries.note(before[-1], at_s=now_s)
        self._deliveries = self._deliveries.note(queue.arrived_seq, at_s=now_s)
        self._deliveries = self._deliveries.forget_before(queue.journal.oldest_running_seq())
        if not queue.journal.unpublished_tasks:
            self._published.append((now_s, queue.journal.next_seq - 1))

    async def _drop_lost(self) -> None:
        queue = self._queue
        before_seq = lost_before(
            self._deliveries,
            reachable_since_s=queue.reachable_since_s,
            deadline_s=queue.config.task_deadline_s,
            now_s=queue.context.clock.monotonic_s(),
        )
        lost = queue.journal.running(before_seq=before_seq, limit=DROP_BATCH)
        if lost:
            detail = (
                f"no trajectory within task_deadline_s ({queue.config.task_deadline_s:g} s) of its delivery"
            )
            num_dropped = await self._drop(lost, reason="failed", detail=detail)
            queue.context.stats.add(statistics.LOST, num_dropped)
            queue.context.log.warning("tasks_lost", first=lost[0], count=len(lost), dropped=num_dropped)

    async def _drop_retired(self) -> None:
        journal = self._queue.journal
        running = journal.running(before_seq=journal.next_seq, limit=journal.counts.running)
        for start in range(0, len(running), DROP_BATCH):
            batch = running[start : start + DROP_BATCH]
            await self._drop(batch, reason="retired", detail=self._retired_because)

    async def _drop(self, ids: list[TrajectoryId], *, reason: DropReason, detail: str) -> int:
        await self._queue.caught_up()
        return await self._queue.store.drop_unarrived(
            [Dropped(trajectory, reason, detail) for trajectory in ids],
            proof=proof_of_queue(ids, self._queue.secret),
        )

    def _count_refused(self, _error: RecordError) -> None:
        self._queue.context.stats.add(statistics.STATS_REFUSED)

    def _receive_stats(self, stats: ServiceStats) -> None:
        self._actors.receive(stats, now_s=self._queue.context.clock.monotonic_s())
