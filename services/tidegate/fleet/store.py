"""The trajectory store: arrivals, leases, commits and restores as in the ledger, in memory."""

from collections import deque
from collections.abc import Callable, Sequence

from tidegate.core.batching import Candidate, Drop
from tidegate.core.ids import GroupId, PolicyVersion, TrajectoryId
from tidegate.core.replay import OPEN_END, surviving_steps
from tidegate.core.staleness import Lineage, LineageTree
from tidegate.core.waiting import WholeGroups
from tidegate.fleet.event_queue import EventQueue
from tidegate.fleet.meters import Meters
from tidegate.fleet.plan import FleetPlan
from tidegate.fleet.queue import Outcome
from tidegate.fleet.rollout import Rollout
from tidegate.learner.state import OutdatedTrajectory


class Trained:
    """The batch of an update; ``resident`` while its payload is kept for a restore."""

    __slots__ = ("candidates", "resident", "version")

    def __init__(self, version: PolicyVersion, candidates: tuple[Candidate, ...]) -> None:
        self.version = version
        self.candidates = candidates
        self.resident = True


class FleetStore:
    """Consumes rollouts, produces batches and outcomes. ``stream`` holds arrivals while it is down."""

    def __init__(
        self,
        plan: FleetPlan,
        events: EventQueue,
        meters: Meters,
        *,
        report_outcomes: Callable[[list[Outcome]], None],
    ) -> None:
        """``report_outcomes`` is called with new entries of the outcome log."""
        self._plan = plan
        self._limits = plan.staleness()
        self._events = events
        self._meters = meters
        self._report_outcomes = report_outcomes
        self._seq = 0
        self._tree = LineageTree()
        self.pool = WholeGroups()
        self.head: PolicyVersion | None = None
        self.leased: tuple[Candidate, ...] = ()
        # Recent updates, oldest first; one is removed once no kept checkpoint precedes it.
        self.recent: deque[Trained] = deque()
        self.stream: deque[Rollout] = deque()
        self.alive = True
        self.skew_s = 0.0

    # -- arrivals --------------------------------------------------------------------------------------------------

    def arrive(self, rollout: Rollout) -> None:
        """Accept a rollout; while the store is down it waits in its stream."""
        if not self.alive:
            self.stream.append(rollout)
            return
        group_id = GroupId(rollout.task_id)
        first = self._seq
        self._seq += len(rollout.ids)
        group = tuple(
            Candidate(
                seq=first + number,
                trajectory_id=trajectory,
                group_id=group_id,
                group_size=rollout.num_samples,
                spans=rollout.spans,
                started_at_s=rollout.started_at_s,
                frame_id=first,
            )
            for number, trajectory in enumerate(rollout.ids)
        )
        self._meters.queued(len(group))
        self.pool.add(group)
        self._report_outcomes([(trajectory, "accepted", None) for trajectory in rollout.ids])

    def stop(self) -> None:
        """It fails: nothing is accepted or leased until ``restart``; the ledger survives."""
        self.alive = False

    def restart(self) -> None:
        """Accept the arrivals that waited."""
        self.alive = True
        waiting, self.stream = self.stream, deque()
        for rollout in waiting:
            self.arrive(rollout)

    # -- batches ---------------------------------------------------------------------------------------------------

    def lease(self, version: PolicyVersion, tree: LineageTree) -> tuple[Candidate, ...]:
        """The next full batch for an update of ``version``, empty while there is not enough."""
        self.head, self._tree = version, tree
        if self.pool.num_trajectories < self._plan.batch_size:
            return ()
        choice = self.pool.choose(
            batch_size=self._plan.batch_size,
            head=version,
            tree=tree,
            limits=self._limits,
            now_s=self.now_s(),
        )
        self._meters.queued(-len(choice.batch))
        self.leased = choice.batch
        self._take_out(choice.batch)
        self._drop(choice.dropped)
        return choice.batch

    def expire(self) -> None:
        """Drop trajectories beyond the budget of the newest known version."""
        if self.alive and self.head is not None and self.pool.num_trajectories:
            self._drop(
                self.pool.overdue(head=self.head, tree=self._tree, limits=self._limits, now_s=self.now_s())
            )

    def commit(self, version: PolicyVersion) -> None:
        """The leased batch was trained at ``version``."""
        batch, self.leased = self.leased, ()
        self.recent.append(Trained(version, batch))
        self._report_outcomes([(candidate.trajectory_id, "trained", version) for candidate in batch])

    def release(self, outdated: tuple[OutdatedTrajectory, ...]) -> None:
        """Make the leased batch available again, without its outdated trajectories."""
        reasons = {item.trajectory_id: item.reason for item in outdated}
        batch, self.leased = self.leased, ()
        self._make_available([candidate for candidate in batch if candidate.trajectory_id not in reasons])
        self._meters.dropped.update(reasons.values())
        self._report_outcomes([(trajectory, "dropped", None) for trajectory in reasons])

    # -- restores --------------------------------------------------------------------------------------------------

    def note_checkpoints(self, newest: PolicyVersion, oldest_kept: PolicyVersion, tree: LineageTree) -> None:
        """Free payloads that the newest checkpoint covers; updates that the oldest covers are final."""
        safe = surviving_steps(newest, tree)
        for update in self.recent:
            if update.version.step < safe.get(update.version.lineage, 0):
                update.resident = False
        final = surviving_steps(oldest_kept, tree)
        while self.recent and self.recent[0].version.step < final.get(self.recent[0].version.lineage, 0):
            self.recent.popleft()

    def open_lineage(self, lineage: Lineage, tree: LineageTree) -> None:
        """A learner starts: the earlier lease ends, and what its branch trained beyond the fork is available again."""
        batch, self.leased = self.leased, ()
        self._make_available(batch)
        surviving = surviving_steps(PolicyVersion(lineage=lineage.name, step=OPEN_END), tree)
        kept: deque[Trained] = deque()
        for update in self.recent:
            if update.version.step < surviving.get(update.version.lineage, 0):
                kept.append(update)
            elif update.resident:
                self._revive(update.candidates)
            else:
                self._supersede(update.candidates)
        self.recent = kept

    def _revive(self, candidates: tuple[Candidate, ...]) -> None:
        self._meters.revived += len(candidates)
        self._make_available(candidates)
        self._report_outcomes([(candidate.trajectory_id, "available", None) for candidate in candidates])

    def _supersede(self, candidates: tuple[Candidate, ...]) -> None:
        self._meters.dropped["superseded"] += len(candidates)
        self._report_outcomes([(candidate.trajectory_id, "dropped", None) for candidate in candidates])

    def _make_available(self, candidates: tuple[Candidate, ...] | list[Candidate]) -> None:
        self._meters.queued(len(candidates))
        groups: dict[GroupId, list[Candidate]] = {}
        for candidate in candidates:
            groups.setdefault(candidate.group_id, []).append(candidate)
        for members in groups.values():
            self.pool.add(tuple(members))

    def _drop(self, drops: tuple[Drop, ...]) -> None:
        if not drops:
            return
        self._take_out([drop.candidate for drop in drops])
        self._meters.queued(-len(drops))
        self._meters.dropped.update(drop.reason for drop in drops)
        self._report_outcomes([(drop.candidate.trajectory_id, "dropped", None) for drop in drops])

    def _take_out(self, candidates: Sequence[Candidate]) -> None:
        """Remove whole groups, whose members follow each other."""
        position = 0
        while position < len(candidates):
            position += len(self.pool.remove(candidates[position].seq))

    def now_s(self) -> float:
        """By the store's clock."""
        return self._events.now_s + self.skew_s

    def ids(self) -> list[TrajectoryId]:
        """All trajectories held here that are not terminal, with repetitions."""
        waiting = [candidate.trajectory_id for group in self.pool.groups() for candidate in group]
        leased = [candidate.trajectory_id for candidate in self.leased]
        arriving = [trajectory for rollout in self.stream for trajectory in rollout.ids]
        return [*waiting, *leased, *arriving]
