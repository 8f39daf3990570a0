"""Invariants, checked after every tick; docs/invariants.md defines them.

``oracle`` checks I1 and I3 where gradients are computed. The others are checked here against the files of the run and
the content of the broker, never against what a service reports.
"""

from collections.abc import Iterable

from tidegate.core.audit import reconcile
from tidegate.core.ids import TrajectoryId, task_of
from tidegate.sim.accounting import Accounting
from tidegate.sim.cluster import FETCH_MESSAGES_MAX, FINISHED_WORK, WORK_QUEUES, SimulatedCluster
from tidegate.sim.oracle import Oracle
from tidegate.sim.scenario import TICK_S
from tidegate.task_queue.journal import read_journal
from tidegate.trajectory_store import reading
from tidegate.wire.subjects import HEADER_MESSAGE_ID

# How long a fault may delay updates. The longest wait after it is for a task that was lost, which is dropped at the
# sweep after its deadline (cluster.TASK_DEADLINE_S), and whose replacement is trained a few seconds later.
RECOVERY_S = 25.0
# After that, the longest time between two updates: drawn rollouts and updates take at most a second.
GAP_S = 8.0
AUDIT_EVERY_TICKS = 250
# Messages that may wait in one subscription of a client; far above a burst, far below what a leak makes in a run.
WAITING_MESSAGES_MAX = 1000


class InvariantChecker:
    """Checks a cluster after every tick and records violations in its oracle."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._oracle: Oracle = cluster.oracle
        self.accounting = Accounting(
            journal=cluster.folder / "task_queue" / "journal.sqlite",
            ledger=cluster.folder / "trajectory_store" / reading.LEDGER_FILE,
        )
        self.max_in_flight = 0
        self.max_running = 0
        self._healthy_since_tick: int | None = None
        self._progressed_at_tick = 0
        self._updates = 0
        self.first_update_after_faults_s: float | None = None

    def expect_progress(self, tick: int) -> None:
        """Faults have ended; from this tick on updates must go on (I9)."""
        self._healthy_since_tick = self._progressed_at_tick = tick
        self._updates = self._oracle.num_updates

    def check(self, tick: int) -> list[str]:
        """Check invariants, every ``AUDIT_EVERY_TICKS`` the audit too; returns what is new in the accounting."""
        news = self.accounting.follow()
        self._check_conservation()
        self._check_drained()
        self._check_bounds(admitting=bool(news.admitted))
        self._check_progress(tick)
        if tick % AUDIT_EVERY_TICKS == 0:
            self.audit()
        return [*news.admitted, *(f"{trajectory} {state}" for trajectory, state in news.outcomes)]

    # -- I2 --------------------------------------------------------------------------------------------------------

    def _check_conservation(self) -> None:
        """Admitted trajectories without a row in the ledger are on a stream, or in the journal and unpublished (I2)."""
        accounting = self.accounting
        if accounting.unknown:
            self._oracle.violate("I2", f"the ledger has {accounting.unknown[0]}, which was never admitted")
            accounting.unknown.clear()
        if not accounting.awaiting:
            return
        found = self._tasks_on_streams() | accounting.unpublished_tasks() | self._cluster.corrupted_tasks
        lost = [trajectory for trajectory in sorted(accounting.awaiting) if task_of(trajectory) not in found]
        if lost:
            self._oracle.violate(
                "I2", f"{lost[0]} and {len(lost) - 1} others have no outcome and are on no stream"
            )

    def _tasks_on_streams(self, kinds: Iterable[str] = WORK_QUEUES) -> set[str]:
        topology, streams = self._cluster.world.topology, self._cluster.broker.streams
        return {
            message.headers[HEADER_MESSAGE_ID].partition(":")[0]
            for kind in kinds
            if (stream := streams.get(topology.stream(kind))) is not None
            for message in stream.messages.values()
        }

    def audit(self) -> None:
        """Reconcile journal and ledger by id, as `tidegate audit` does, and both with the followed outcomes."""
        accounting = self.accounting
        if not accounting.journal.is_file() or not accounting.ledger.is_file():
            return
        with read_journal(accounting.journal) as journal:
            totals, admitted = journal.totals(), set(journal.admitted_ids())
        rows = {row.trajectory_id: row.state for row in reading.rows(accounting.ledger)}
        result = reconcile(
            totals,
            reading.totals(accounting.ledger),
            unknown=len(rows.keys() - admitted),
            awaiting=len(admitted - rows.keys()),
        )
        for problem in result.problems:
            self._oracle.violate("I2", f"audit: {problem}")
        if admitted != accounting.admitted or admitted - rows.keys() != accounting.awaiting:
            self._oracle.violate("I2", "the journal holds other trajectories than those it was seen to admit")
        self._check_outcome_log(rows)
        if accounting.journal_is_current() and totals.open != result.in_flight:
            self._oracle.violate(
                "I2", f"the queue counts {totals.open} in flight, the ledger {result.in_flight}"
            )

    def _check_outcome_log(self, rows: dict[TrajectoryId, str]) -> None:
        followed = self.accounting.states
        for trajectory, state in rows.items():
            seen = followed.get(trajectory, "")
            if state != seen and not (state in ("available", "leased") and seen in ("accepted", "available")):
                self._oracle.violate(
                    "I2", f"{trajectory} is {state} in the ledger and {seen!r} in its outcome log"
                )
                return

    def check_trained(self) -> None:
        """The ledger's trained rows are the trajectories of the surviving policy, but for its last two updates."""
        trained, recent = self._oracle.trained()
        recorded = {
            row.trajectory_id: row.stale_by_versions
            for row in reading.rows(self.accounting.ledger)
            if row.state == "trained"
        }
        missing, surplus = trained.keys() - recent - recorded.keys(), recorded.keys() - trained.keys()
        if missing:
            self._oracle.violate("I3", f"{min(missing)} was trained and is not trained in the ledger")
        if surplus:
            self._oracle.violate(
                "I2", f"{min(surplus)} is trained in the ledger and in no policy that survived"
            )
        wrong = [name for name, lag in recorded.items() if trained.get(name, lag) != lag]
        if wrong:
            self._oracle.violate(
                "I1", f"the ledger has lag {recorded[wrong[0]]} for {wrong[0]}, it was {trained[wrong[0]]}"
            )

    # -- I10 -------------------------------------------------------------------------------------------------------

    def _check_drained(self) -> None:
        """Rollouts that were finished when their actor drained are on a stream or in the ledger."""
        published = self._oracle.take_published()
        if not published:
            return
        terminal = {task_of(trajectory) for trajectory in self.accounting.states}
        found = terminal | self._tasks_on_streams(FINISHED_WORK) | self._cluster.corrupted_tasks
        lost = sorted(published - found)
        if lost:
            self._oracle.violate(
                "I10", f"the rollouts of {lost[0]} and {len(lost) - 1} others were lost in a drain"
            )

    # -- I7 --------------------------------------------------------------------------------------------------------

    def _check_bounds(self, *, admitting: bool) -> None:
        cluster, scenario, accounting = self._cluster, self._cluster.scenario, self.accounting
        running = len(accounting.awaiting)
        in_flight = running + len(accounting.waiting)
        self.max_running = max(self.max_running, running)
        self.max_in_flight = max(self.max_in_flight, in_flight)
        if admitting and running > scenario.max_running:
            self._oracle.violate(
                "I7", f"{running} trajectories are running, max_running is {scenario.max_running}"
            )
        bound = (scenario.max_lag + 1) * scenario.batch_size + len(accounting.revived)
        if admitting and in_flight > bound:
            self._oracle.violate("I7", f"{in_flight} trajectories are in flight, the budget holds {bound}")
        # Two fetches may be in flight when the store becomes full; what a restore revives was resident before.
        resident = len(accounting.waiting) - len(accounting.revived)
        if resident > scenario.max_resident + 2 * FETCH_MESSAGES_MAX * scenario.group_size:
            self._oracle.violate(
                "I7", f"{resident} trajectories wait in the store, its bound is {scenario.max_resident}"
            )
        for stream in cluster.broker.streams.values():
            limits = stream.limits
            if (limits.max_messages and len(stream.messages) > limits.max_messages) or (
                limits.max_bytes and stream.num_bytes > limits.max_bytes
            ):
                self._oracle.violate("I7", f"stream {limits.name} holds {len(stream.messages)} messages")
        for host in cluster.hosts.values():
            if host.connection is not None and host.connection.num_waiting() > WAITING_MESSAGES_MAX:
                self._oracle.violate(
                    "I7", f"{host.instance} has {host.connection.num_waiting()} messages waiting"
                )

    # -- I9 --------------------------------------------------------------------------------------------------------

    def _check_progress(self, tick: int) -> None:
        if self._healthy_since_tick is None:
            return
        if self._oracle.num_updates > self._updates:
            if self.first_update_after_faults_s is None:
                self.first_update_after_faults_s = (tick - self._healthy_since_tick) * TICK_S
            self._updates, self._progressed_at_tick = self._oracle.num_updates, tick
        recovering = (tick - self._healthy_since_tick) * TICK_S <= RECOVERY_S + GAP_S
        allowed_s = RECOVERY_S if recovering else GAP_S
        if (tick - self._progressed_at_tick) * TICK_S > allowed_s:
            self._oracle.violate("I9", f"nothing was trained for {allowed_s:g} s without a fault")
            self._progressed_at_tick = tick
