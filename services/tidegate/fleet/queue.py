"""The task queue: the capacity law, the plan of tasks and the counts are the service's own; its journal is a dict."""

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from tidegate.core.admission import Delay, Limits
from tidegate.core.ids import PolicyVersion, RunId, TrajectoryId
from tidegate.core.records import Sampler
from tidegate.core.staleness import LineageTree
from tidegate.fleet.event_queue import EventQueue
from tidegate.fleet.meters import Meters
from tidegate.fleet.plan import FleetPlan
from tidegate.fleet.rollout import Rollout
from tidegate.task_queue.state import (
    SEGMENT,
    AdmittedUnder,
    Counts,
    Snapshot,
    TrainedAt,
    TrajectoryState,
    Workload,
    decide,
    effective_limits,
    plan_tasks,
    state_after,
    without_announced,
)

RUN = RunId("fleet")
TASKS_PER_TURN_MAX = 1024
# The start of the law's reason when the staleness budget is full.
BUDGET_FILLED = "staleness budget filled"

# A trajectory, its new state, and the version whose update trained it.
Outcome: TypeAlias = tuple[TrajectoryId, str, PolicyVersion | None]


class FleetQueue:
    """Follows outcomes and versions, and admits what the capacity law allows.

    ``log``: the part of the store's outcome log that this queue has not read; reading it frees it.
    """

    def __init__(
        self, plan: FleetPlan, events: EventQueue, meters: Meters, *, publish: Callable[[Rollout], None]
    ) -> None:
        """``publish`` puts a task on TASKS."""
        self._plan = plan
        self._events = events
        self._meters = meters
        self._publish = publish
        self._ceiling = plan.limits()
        self.limits = self._ceiling
        self.counts = Counts()
        self._states: dict[TrajectoryId, TrajectoryState] = {}
        self._trained_at: TrainedAt = {}
        self.head: PolicyVersion | None = None
        self._announced: tuple[PolicyVersion, LineageTree] | None = None
        self._asked_for: Limits | None = None
        self._tree = LineageTree()
        self._next_seq = 1
        # Only where the law is paced: tasks that may still run, oldest first, each with its last trajectory.
        self._running: deque[tuple[int, TrajectoryId]] = deque()
        self._admitted_under = AdmittedUnder()
        self.log: list[Outcome] = []
        self.alive = True
        self.dirty = False
        self.delayed_by = ""
        # What may open admission again: versions and drops, limits, returns; and how often it did open.
        self.num_causes = 0
        self.num_openings = 0
        self._workload = Workload(
            run_id=RUN,
            kind="segment" if plan.group_size == 1 else "group",
            env_id="",
            group_size=plan.group_size,
            unroll_length=plan.samples_per_trajectory,
            sampler=Sampler(),
            seed=plan.seed,
        )

    # -- messages --------------------------------------------------------------------------------------------------

    def receive_outcomes(self, outcomes: list[Outcome]) -> None:
        """The store's log grew."""
        self.log.extend(outcomes)
        self.dirty = True

    def receive_version(self, version: PolicyVersion, tree: LineageTree) -> None:
        """A version was announced; the stream keeps the newest until it is read."""
        self._announced = (version, tree)
        self.dirty = True

    def receive_limits(self, limits: Limits) -> None:
        """Admission requested limits; the stream keeps the last ones until they are read."""
        self._asked_for = limits
        self.dirty = True

    def stop(self) -> None:
        """It fails: nothing is read or admitted until ``restart``; its journal survives."""
        self.alive = False

    def restart(self) -> None:
        """Continue where the journal ends."""
        self.alive = True
        self.dirty = True

    # -- admission -------------------------------------------------------------------------------------------------

    def turn(self, *, places: int) -> None:
        """Read what arrived, then admit what the law allows; without admission, as many as actors have places."""
        self.dirty = False
        self._read()
        if not self._plan.admission:
            self._admit_without_law(places)
            return
        while True:
            snapshot = self.snapshot()
            decision = decide(snapshot, group_size=self._plan.group_size)
            if isinstance(decision, Delay):
                self.delayed_by = decision.reason
                return
            if self.delayed_by.startswith(BUDGET_FILLED):
                self.num_openings += 1
            self.delayed_by = ""
            self._admit(snapshot, count=decision.count // self._plan.group_size)

    def snapshot(self) -> Snapshot:
        """The input of a decision."""
        return Snapshot(
            limits=self.limits,
            counts=self.counts,
            trained_at=self._trained_at,
            head=self.head,
            tree=self._tree,
            behind=self._behind(self.head) if self.limits.paced and self.head else 0,
        )

    def _behind(self, head: PolicyVersion) -> int:
        running = self._running
        while running and self._states.get(running[0][1]) is not TrajectoryState.ADMITTED:
            running.popleft()
        if not running:
            return 0
        oldest = running[0][0]
        self._admitted_under = self._admitted_under.since(oldest)
        return self._admitted_under.behind(oldest, head=head)

    def _admit_without_law(self, places: int) -> None:
        if self.head is not None and places > 0:
            self._admit(self.snapshot(), count=places)

    def _admit(self, snapshot: Snapshot, *, count: int) -> None:
        count = min(count, TASKS_PER_TURN_MAX)
        tasks = plan_tasks(
            snapshot,
            self._workload,
            first_seq=self._next_seq,
            prompts=[SEGMENT] * count,
            trace_parents=[""] * count,
            now_s=self._events.now_s,
        )
        if snapshot.limits.paced and snapshot.head is not None:
            self._admitted_under = self._admitted_under.note(self._next_seq, step=snapshot.head.step)
        self.counts = self.counts.admit(count * self._plan.group_size)
        self._meters.admitted += count * self._plan.group_size
        for seq, task in enumerate(tasks, start=self._next_seq):
            rollout = Rollout(task)
            if snapshot.limits.paced:
                self._running.append((seq, rollout.ids[-1]))
            for trajectory in rollout.ids:
                self._states[trajectory] = TrajectoryState.ADMITTED
            self._publish(rollout)
        self._next_seq += count

    def _read(self) -> None:
        if self._asked_for is not None:
            limits = effective_limits(self._ceiling, self._asked_for)
            self.num_causes += limits != self.limits
            self.limits = limits
            self._asked_for = None
        if self._announced is not None:
            self.head, self._tree = self._announced
            self._announced = None
            self.num_causes += 1
        if not self.log:
            return
        outcomes, self.log = self.log, []
        trained_at = self._trained_at
        if trained_at and self.head is not None:
            trained_at = without_announced(trained_at, head=self.head, tree=self._tree)
        self.num_causes += len({version for _, _, version in outcomes if version is not None})
        self.num_causes += any(outcome == "dropped" for _, outcome, _ in outcomes)
        for trajectory, outcome, version in outcomes:
            # Only what is in flight is kept; of the rest, none but the trained come back.
            before = self._states.pop(trajectory, TrajectoryState.TRAINED)
            after = state_after(before, outcome)
            if after is not before:
                self.counts = self.counts.move(before, after)
            if after <= TrajectoryState.ACCEPTED:
                self._states[trajectory] = after
            if version is not None:
                trained_at[version] = trained_at.get(version, 0) + 1
        self._trained_at = trained_at
