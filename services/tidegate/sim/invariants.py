"""What must hold, looked at after every tick. Names are those of design.md, section 3.

I1 and I3 are judged where gradients are made (``truth``); here are the others, against the files of the run and what
the broker holds, and never against what a service says of itself.
"""

from collections.abc import Iterable

from tidegate.core.audit import reconcile
from tidegate.core.ids import TrajectoryId, task_of
from tidegate.sim.books import Books
from tidegate.sim.cluster import FETCH_MESSAGES_MAX, FINISHED_WORK, WORK_QUEUES, Cluster
from tidegate.sim.scenario import TICK_S
from tidegate.sim.truth import Truth
from tidegate.task_queue.journal import read_journal
from tidegate.trajectory_store import reading
from tidegate.wire.subjects import HEADER_MESSAGE_ID

# How long a fault may be felt: the longest wait that it can leave behind is for a task that was lost, which is settled
# at the sweep after its deadline (cluster.TASK_DEADLINE_S), and whose replacement is trained a few seconds later.
RECOVERY_S = 25.0
# After that, the longest time between two updates: rollouts and updates take at most a second in what is drawn.
GAP_S = 8.0
AUDIT_EVERY_TICKS = 250
# Messages that may wait in one subscription of a client; far above a burst, far below what a leak makes in a run.
WAITING_MESSAGES_MAX = 1000


class Inspector:
    """Looks at a cluster after every tick and notes violations in its ``truth``."""

    def __init__(self, cluster: Cluster) -> None:
        """Follows the cluster's files from the start."""
        self._cluster = cluster
        self._truth: Truth = cluster.truth
        self.books = Books(
            journal=cluster.folder / "task_queue" / "journal.sqlite",
            ledger=cluster.folder / "trajectory_store" / reading.LEDGER_FILE,
        )
        self.max_in_flight = 0
        self.max_running = 0
        self._calm_since_tick: int | None = None
        self._progressed_at_tick = 0
        self._updates = 0
        self.first_update_after_calm_s: float | None = None

    def calm(self, tick: int) -> None:
        """Nothing goes wrong from this tick on."""
        self._calm_since_tick = self._progressed_at_tick = tick
        self._updates = self._truth.num_updates

    def look(self, tick: int) -> list[str]:
        """Check everything that is cheap enough for every tick, and sometimes everything; returns what is new."""
        news = self.books.follow()
        self._check_conservation()
        self._check_drained()
        self._check_bounds(admitting=bool(news.admitted))
        self._check_progress(tick)
        if tick % AUDIT_EVERY_TICKS == 0:
            self.audit()
        return [*news.admitted, *(f"{trajectory} {state}" for trajectory, state in news.outcomes)]

    # -- I2 --------------------------------------------------------------------------------------------------------

    def _check_conservation(self) -> None:
        """Whatever was admitted and has no row in the ledger is somewhere it will be found again."""
        books = self.books
        if books.unknown:
            self._truth.violate("I2", f"the ledger has {books.unknown[0]}, which nobody admitted")
            books.unknown.clear()
        if not books.awaiting:
            return
        found = self._tasks_on_streams() | books.unpublished_tasks() | self._cluster.garbled_tasks
        lost = [trajectory for trajectory in sorted(books.awaiting) if task_of(trajectory) not in found]
        if lost:
            self._truth.violate(
                "I2", f"{lost[0]} and {len(lost) - 1} others are neither settled nor anywhere"
            )

    def _tasks_on_streams(self, kinds: Iterable[str] = WORK_QUEUES) -> set[str]:
        topology, streams = self._cluster.around.topology, self._cluster.broker.streams
        return {
            message.headers[HEADER_MESSAGE_ID].partition(":")[0]
            for kind in kinds
            if (stream := streams.get(topology.stream(kind))) is not None
            for message in stream.messages.values()
        }

    def audit(self) -> None:
        """Hold journal and ledger against each other by id, as `tidegate audit` does, and against what was followed."""
        books = self.books
        if not books.journal.is_file() or not books.ledger.is_file():
            return
        with read_journal(books.journal) as journal:
            totals, admitted = journal.totals(), set(journal.admitted_ids())
        rows = {row.trajectory_id: row.state for row in reading.rows(books.ledger)}
        result = reconcile(
            totals,
            reading.totals(books.ledger),
            unknown=len(rows.keys() - admitted),
            awaiting=len(admitted - rows.keys()),
            max_lag=self._cluster.scenario.max_lag,
        )
        for problem in result.problems:
            self._truth.violate("I2", f"the audit says: {problem}")
        if admitted != books.admitted or admitted - rows.keys() != books.awaiting:
            self._truth.violate("I2", "the journal holds other trajectories than those it was seen to admit")
        self._check_outcome_log(rows)
        if books.journal_is_current() and totals.open != result.in_flight:
            self._truth.violate(
                "I2", f"the queue believes that {totals.open} are in flight, the ledger {result.in_flight}"
            )

    def _check_outcome_log(self, rows: dict[TrajectoryId, str]) -> None:
        followed = self.books.states
        for trajectory, state in rows.items():
            seen = followed.get(trajectory, "")
            if state != seen and not (state in ("available", "leased") and seen in ("accepted", "available")):
                self._truth.violate(
                    "I2", f"{trajectory} is {state} in the ledger and {seen!r} in its outcome log"
                )
                return

    def check_trained(self) -> None:
        """What the surviving policy was trained on is what the ledger calls trained, but for its last two updates."""
        trained, recent = self._truth.trained()
        recorded = {
            row.trajectory_id: row.stale_by_versions
            for row in reading.rows(self.books.ledger)
            if row.state == "trained"
        }
        missing, surplus = trained.keys() - recent - recorded.keys(), recorded.keys() - trained.keys()
        if missing:
            self._truth.violate("I3", f"{min(missing)} was trained and the ledger does not know it")
        if surplus:
            self._truth.violate(
                "I2", f"{min(surplus)} is trained in the ledger and in no policy that survived"
            )
        wrong = [name for name, lag in recorded.items() if trained.get(name, lag) != lag]
        if wrong:
            self._truth.violate(
                "I1", f"the ledger has lag {recorded[wrong[0]]} for {wrong[0]}, it was {trained[wrong[0]]}"
            )

    # -- I10 -------------------------------------------------------------------------------------------------------

    def _check_drained(self) -> None:
        """Rollouts that were finished when their actor drained are on a stream or in the ledger."""
        published = self._truth.take_published()
        if not published:
            return
        settled = {task_of(trajectory) for trajectory in self.books.states}
        found = settled | self._tasks_on_streams(FINISHED_WORK) | self._cluster.garbled_tasks
        lost = sorted(published - found)
        if lost:
            self._truth.violate(
                "I10", f"the rollouts of {lost[0]} and {len(lost) - 1} others were lost in a drain"
            )

    # -- I7 --------------------------------------------------------------------------------------------------------

    def _check_bounds(self, *, admitting: bool) -> None:
        cluster, scenario, books = self._cluster, self._cluster.scenario, self.books
        running = len(books.awaiting)
        in_flight = running + len(books.waiting)
        self.max_running = max(self.max_running, running)
        self.max_in_flight = max(self.max_in_flight, in_flight)
        if admitting and running > scenario.max_running:
            self._truth.violate(
                "I7", f"{running} trajectories are running, max_running is {scenario.max_running}"
            )
        bound = (scenario.max_lag + 1) * scenario.batch_size + len(books.revived)
        if admitting and in_flight > bound:
            self._truth.violate("I7", f"{in_flight} trajectories are in flight, the budget holds {bound}")
        # Two portions may be on their way when the store becomes full; what a restore revives was resident before.
        resident = len(books.waiting) - len(books.revived)
        if resident > scenario.max_resident + 2 * FETCH_MESSAGES_MAX * scenario.group_size:
            self._truth.violate(
                "I7", f"{resident} trajectories wait in the store, its bound is {scenario.max_resident}"
            )
        for stream in cluster.broker.streams.values():
            limits = stream.limits
            if (limits.max_messages and len(stream.messages) > limits.max_messages) or (
                limits.max_bytes and stream.num_bytes > limits.max_bytes
            ):
                self._truth.violate("I7", f"stream {limits.name} holds {len(stream.messages)} messages")
        for host in cluster.hosts.values():
            if host.connection is not None and host.connection.num_waiting() > WAITING_MESSAGES_MAX:
                self._truth.violate(
                    "I7", f"{host.instance} has {host.connection.num_waiting()} messages waiting"
                )

    # -- I9 --------------------------------------------------------------------------------------------------------

    def _check_progress(self, tick: int) -> None:
        if self._calm_since_tick is None:
            return
        if self._truth.num_updates > self._updates:
            if self.first_update_after_calm_s is None:
                self.first_update_after_calm_s = (tick - self._calm_since_tick) * TICK_S
            self._updates, self._progressed_at_tick = self._truth.num_updates, tick
        recovering = (tick - self._calm_since_tick) * TICK_S <= RECOVERY_S + GAP_S
        allowed_s = RECOVERY_S if recovering else GAP_S
        if (tick - self._progressed_at_tick) * TICK_S > allowed_s:
            self._truth.violate("I9", f"nothing was trained for {allowed_s:g} s although nothing is wrong")
            self._progressed_at_tick = tick
