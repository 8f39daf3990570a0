"""Invariants of a chaos run, checked against the accounting of an oracle that the loop does not write.

They hold at each tick of admission, with n actors and all services up (``Bounds`` derives the numbers):

- I1: no gradient is farther from any version in it than ``max_lag``, counted update by update, nor older than
  ``max_age_s``, but for clock jumps.
- I2: each admitted trajectory that is not terminal is in exactly one place, and the queue's counts agree.
- I7: every queue, stream, lease and log is within the bound of the capacity law.
- I9: updates go on within ``progress_s``.
- No oscillation: closed by the budget, admission opens at most once for each version that was announced or reported as
  trained, each report of drops, each change of limits and each return of the queue; limits change at most once a tick,
  and never while the reported statistics stay the same. Each opening is closed once: twice as many alternations.
- Steering: one hard sync a period of versions, one move of the budget a pair of measured windows.
- Recovery: ``progress_s`` after the last fault ended, throughput is 95 % of what it was before the first one, less two
  standard errors of the two rates (``chaos`` measures them).
"""

from math import ceil

import msgspec

from tidegate.core.batching import Candidate
from tidegate.core.ids import LineageName, PolicyVersion, TrajectoryId
from tidegate.fleet.learner import CHECKPOINTS_KEPT
from tidegate.fleet.loop import FleetLoop
from tidegate.fleet.plan import FleetPlan
from tidegate.fleet.queue import Outcome
from tidegate.fleet.rollout import Rollout

VIOLATIONS_SHOWN = 8


class Bounds(msgspec.Struct, frozen=True):
    """The longest times of one plan, in seconds, and the most trajectories in flight.

    ``rollout_s``, ``score_s``, ``learn_s``: longest of each. Everything in flight has ended after ``drain_s``: tasks of
    failed actors are redelivered, waiting tasks are rolled out and scored one after another by the actors that are up,
    and each version is trained and distributed. In the worst case all of it is beyond the budget by then, and its
    replacement takes as long again; before that, work that started under a slowdown ends ``slowest`` times as late:
    ``progress_s``. A hard sync stops admission for ``held_s`` at most, once between two updates.
    """

    in_flight: int
    rollout_s: float
    score_s: float
    learn_s: float
    travel_s: float
    redelivery_s: float
    tick_s: float
    group_size: int
    max_lag: int
    environments: int
    slowest: float
    prefetch: int
    held_s: float

    def drain_s(self, actors: int) -> float:
        """The longest time of anything in flight, with ``actors`` up."""
        tasks = ceil(self.in_flight / self.group_size)
        rollouts_s = (ceil(tasks / max(1, actors)) + 1 + self.prefetch) * (self.rollout_s + self.travel_s)
        scores_s = (ceil(tasks / self.environments) + 1) * self.score_s if self.environments else 0.0
        updates_s = (self.max_lag + 2) * (self.learn_s + self.travel_s)
        return self.redelivery_s + 2 * self.tick_s + rollouts_s + scores_s + updates_s

    def progress_s(self, actors: int) -> float:
        """The longest time between two updates without faults."""
        begun_slow_s = self.slowest * (self.rollout_s + self.score_s + self.learn_s + self.travel_s)
        return 2 * self.drain_s(actors) + begun_slow_s + self.held_s


def bounds_of(plan: FleetPlan, *, longest: float, slowest: float) -> Bounds:
    """The bounds of a plan whose durations are at most ``longest`` times their means, and ``slowest`` times that."""
    assert plan.max_lag is not None, "a chaos run has a budget"
    deepest = plan.announce_s + plan.actors.bit_length() * plan.pull_s
    return Bounds(
        in_flight=(plan.max_lag + 1) * plan.batch_size,
        rollout_s=plan.rollout.mean_s * longest + plan.hop_s,
        score_s=plan.score.mean_s * longest,
        learn_s=plan.learn.mean_s * longest / plan.learner_speed(),
        travel_s=deepest + 2 * plan.hop_s,
        redelivery_s=plan.redelivery_s,
        tick_s=plan.tick_s,
        group_size=plan.group_size,
        max_lag=plan.max_lag,
        environments=plan.environments,
        slowest=slowest,
        prefetch=plan.prefetch,
        held_s=plan.response.hard_sync.timeout_s + 2 * plan.tick_s
        if plan.response.hard_sync.every_versions
        else 0.0,
    )


class FleetOracle:
    """Observes the loop and records independently what was started, trained and dropped."""

    def __init__(self) -> None:
        self.loop: FleetLoop | None = None
        self.open: set[TrajectoryId] = set()
        self.revived: set[TrajectoryId] = set()
        self.violations: list[str] = []
        self._started: dict[TrajectoryId, tuple[PolicyVersion, float, float]] = {}

    def admitted(self, rollout: Rollout) -> None:
        """A task was admitted."""
        self.open.update(rollout.ids)

    def began(self, rollout: Rollout) -> None:
        """An actor started it."""
        skew_s = rollout.started_at_s - rollout.began_s
        for trajectory in rollout.ids:
            self._started[trajectory] = (rollout.spans[0].version, rollout.began_s, skew_s)

    def outcomes(self, outcomes: list[Outcome]) -> None:
        """The ledger changed."""
        for trajectory, outcome, _ in outcomes:
            if outcome in ("trained", "dropped"):
                self.open.discard(trajectory)
                self.revived.discard(trajectory)
            elif outcome == "available":
                self.open.add(trajectory)
                self.revived.add(trajectory)

    def gradient(self, version: PolicyVersion, batch: tuple[Candidate, ...]) -> None:
        """Check I1 for every trajectory of a loss."""
        assert self.loop is not None, "the watch sets it"
        loop, limits = self.loop, self.loop.plan.staleness()
        forks = {
            name: (lineage.parent, lineage.fork_step) for name, lineage in loop.learner.tree.lineages.items()
        }
        near = _ancestors(version, forks, limits.max_lag)
        for candidate in batch:
            served, began_s, skew_s = self._started[candidate.trajectory_id]
            lag = min(
                (
                    near[ancestor] + steps
                    for ancestor, steps in _ancestors(served, forks, limits.max_lag).items()
                    if ancestor in near
                ),
                default=limits.max_lag + 1,
            )
            if lag > limits.max_lag:
                self.violate("I1", f"{candidate.trajectory_id} is trained at a lag above {limits.max_lag}")
            age_s = loop.events.now_s - began_s
            # An actor's clock that is ahead of both others makes its work look younger.
            unseen_s = max(0.0, skew_s - max(loop.learner.skew_s, loop.store.skew_s))
            if age_s > limits.max_age_s + unseen_s + 1e-6:
                self.violate("I1", f"{candidate.trajectory_id} is trained {age_s:.1f} s old")

    def violate(self, invariant: str, what: str) -> None:
        """Record a violation with its time."""
        now_s = 0.0 if self.loop is None else self.loop.events.now_s
        self.violations.append(f"{invariant} at {now_s:.3f} s: {what}")


def _ancestors(
    version: PolicyVersion, forks: dict[LineageName, tuple[LineageName | None, int]], most: int
) -> dict[tuple[str, int], int]:
    """The last ``most`` updates behind a version and itself, with their distance, one step at a time."""
    found: dict[tuple[str, int], int] = {}
    name, step = version.lineage, version.step
    for distance in range(most + 1):
        parent, fork_step = forks[name]
        # Up to its fork a branch is its parent.
        while parent is not None and step <= fork_step:
            name = parent
            parent, fork_step = forks[name]
        found[name, step] = distance
        step -= 1
        if step < 0:
            break
    return found


class FleetInvariantChecker:
    """Checks everything after each tick."""

    def __init__(self, loop: FleetLoop, oracle: FleetOracle, bounds: Bounds) -> None:
        """``oracle`` observes ``loop`` from its first event on."""
        self._loop = loop
        self._truth = oracle
        oracle.loop = loop
        self._bounds = bounds
        self._whole_since_s = 0.0
        self._updates: int = 0
        self._updated_at_s = 0.0
        self._openings = self._causes = self._changes = 0
        self._read_at = (2 * bounds.in_flight, 0)
        self._most_before = bounds.in_flight
        self._reported: tuple[object, ...] | None = None
        self.longest_gap_s = 0.0
        self.num_openings_max = 0

    def note_disturbance(self) -> None:
        """A fault started or ended: the time without faults counts from now."""
        self._whole_since_s = self._loop.events.now_s

    def check(self, *, healthy: bool) -> None:
        """Check the invariants of a tick; ``healthy`` while no fault is active."""
        self._check_conservation()
        self._check_bounds()
        self._check_progress(healthy=healthy)
        self._check_oscillation()

    def _check_conservation(self) -> None:
        loop, actors, environments = self._loop, self._loop.actors, self._loop.environments
        held = [actor.rollout for actor in actors.members if actor.rollout is not None]
        rollouts = [
            *(rollout for actor in actors.members for rollout in actor.held_tasks),
            *actors.tasks,
            *actors.overdue,
            *held,
            *environments.queued,
            *environments.being_scored.values(),
        ]
        found = [trajectory for rollout in rollouts for trajectory in rollout.ids]
        found += loop.store.ids()
        distinct = set(found)
        if len(distinct) != len(found):
            self._truth.violate("I2", f"{len(found) - len(distinct)} trajectories are in two places")
        if distinct != self._truth.open:
            lost = self._truth.open - distinct
            surplus = distinct - self._truth.open
            self._truth.violate("I2", f"{len(lost)} are nowhere, {len(surplus)} are terminal and still held")
        meters, counts = loop.meters, loop.queue.counts
        if counts.admitted != meters.admitted:
            self._truth.violate("I2", f"the queue counts {counts.admitted} of {meters.admitted} admitted")
        has_read_all = loop.queue.alive and not loop.plan.hop_s and not loop.queue.log
        if has_read_all and counts.in_flight != len(self._truth.open):
            self._truth.violate(
                "I2", f"the queue counts {counts.in_flight} in flight, there are {len(self._truth.open)}"
            )

    def _check_bounds(self) -> None:
        loop, bounds = self._loop, self._bounds
        most = bounds.in_flight + len(self._truth.revived)
        in_flight = len(self._truth.open)
        waiting = loop.store.pool.num_trajectories
        leased = len(loop.store.leased)
        arriving = sum(len(rollout.ids) for rollout in loop.store.stream)
        running = in_flight - waiting - leased
        limits = loop.plan.limits()
        lengths = {
            "in flight": (in_flight, most),
            "running": (running, limits.max_running),
            "waiting in the store": (waiting, most),
            "arriving at the store": (arriving, most),
            "leased": (leased, loop.plan.batch_size),
            "batches at the learner": (loop.learner.num_held, 1),
            # Accepted and ended, for each that was in flight; the same again for each that was revived meanwhile.
            "in the outcome log": (len(loop.queue.log), self._outcomes_max(most)),
            "versions that wait for the weights": (loop.weights.num_waiting, 1),
            "checkpoints": (len(loop.learner.checkpoints), CHECKPOINTS_KEPT),
            "updates that a restore may undo": (
                len(loop.store.recent),
                (CHECKPOINTS_KEPT + 1) * loop.plan.checkpoint_every,
            ),
            "actors that wait for a version": (len(loop.actors.waiting), loop.plan.actors),
        }
        for name, (length, bound) in lengths.items():
            if length > bound:
                self._truth.violate("I7", f"{length} {name}, the bound is {bound}")

    def _outcomes_max(self, most: int) -> int:
        """Outcomes since the queue last read the log: two for each that was in flight then, and those of restores.

        A revived trajectory makes three (available, and perhaps trained, and superseded), a superseded one makes one.
        """
        meters, queue = self._loop.meters, self._loop.queue
        restored = 3 * meters.revived + meters.dropped["superseded"]
        if queue.alive and not queue.log:
            # What was in flight at the last tick may have ended since, with its outcomes not yet received.
            self._read_at = (2 * max(most, self._most_before), restored)
        self._most_before = most
        in_flight_then, restored_then = self._read_at
        return in_flight_then + restored - restored_then

    def _check_progress(self, *, healthy: bool) -> None:
        loop, now_s = self._loop, self._loop.events.now_s
        if loop.meters.updates != self._updates:
            self._updates, self._updated_at_s = loop.meters.updates, now_s
        present = loop.meters.actors
        if not healthy or present == 0:
            self._whole_since_s = now_s
            return
        gap_s = now_s - max(self._updated_at_s, self._whole_since_s)
        self.longest_gap_s = max(self.longest_gap_s, gap_s)
        allowed_s = self._bounds.progress_s(present)
        if gap_s > allowed_s:
            self._truth.violate(
                "I9", f"no update for {gap_s:.0f} s with {present} actors (at most {allowed_s:.0f} s)"
            )
            self._updated_at_s = now_s

    def _check_oscillation(self) -> None:
        queue, admission = self._loop.queue, self._loop.admission
        openings, causes = queue.num_openings - self._openings, queue.num_causes - self._causes
        self._openings, self._causes = queue.num_openings, queue.num_causes
        self.num_openings_max = max(self.num_openings_max, openings)
        if openings > causes:
            self._truth.violate(
                "oscillation", f"admission opened {openings} times in a tick, for {causes} reasons"
            )
        changes = admission.num_changes - self._changes
        self._changes = admission.num_changes
        if changes > 1:
            self._truth.violate("oscillation", f"limits changed {changes} times in a tick")
        if changes and self._reported is not None and admission.reported == self._reported:
            self._truth.violate(
                "oscillation", "limits changed although the reported statistics did not change"
            )
        self._reported = admission.reported
        self._check_steering()

    def _check_steering(self) -> None:
        loop, response = self._loop, self._loop.plan.response
        sync, goodput = loop.admission.steering.sync, loop.admission.steering.goodput
        every = response.hard_sync.every_versions
        most = loop.meters.updates // every if every else 0
        if sync.completed + sync.aborted > most:
            self._truth.violate("steering", f"{sync.completed + sync.aborted} hard syncs, {most} were due")
        pair_s = 2 * (response.goodput.window_s + response.goodput.settle_s)
        if goodput.moves > loop.events.now_s / pair_s:
            self._truth.violate(
                "steering", f"the budget moved {goodput.moves} times in {loop.events.now_s:.0f} s"
            )
