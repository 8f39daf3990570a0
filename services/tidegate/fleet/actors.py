"""Actors: each takes a task, waits for a version that may start it, rolls out, and passes the result on."""

from collections import deque
from collections.abc import Callable

from tidegate.core.ids import PolicyVersion
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import LineageTree
from tidegate.fleet.draws import Draws
from tidegate.fleet.event_queue import EventQueue
from tidegate.fleet.meters import Meters
from tidegate.fleet.plan import FleetPlan, depths
from tidegate.fleet.rollout import Rollout
from tidegate.fleet.weights import FleetWeights


class Actor:
    """Runs one rollout at a time; ``held_tasks`` wait for it.

    ``num_free``: free places for tasks. ``serving``: number of the newest version it had. ``attempt`` identifies
    outdated events.
    """

    __slots__ = (
        "alive",
        "attempt",
        "depth",
        "held_tasks",
        "is_waiting",
        "num_free",
        "rollout",
        "serving",
        "skew_s",
    )

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.rollout: Rollout | None = None
        self.held_tasks: deque[Rollout] = deque()
        self.num_free = 0
        self.attempt = 0
        self.serving = 0
        self.alive = False
        self.is_waiting = False
        self.skew_s = 0.0


class FleetActors:
    """All actors, and ``tasks``, the stream they consume.

    ``requests``: actors with a free place, in turn, as a broker serves pulls: an actor with a place gets a task and
    moves to the end, even if another actor is idle.
    """

    def __init__(
        self,
        plan: FleetPlan,
        events: EventQueue,
        meters: Meters,
        *,
        draws: Draws,
        weights: FleetWeights,
        began: Callable[[Rollout], None],
        finished: Callable[[Rollout], None],
    ) -> None:
        """``began`` is called with rollouts that start, ``finished`` with those that end."""
        self._events = events
        self._meters = meters
        self._draws = draws
        self._weights = weights
        self._began = began
        self._finished = finished
        self._hop_s = plan.hop_s
        self._redelivery_s = plan.redelivery_s
        self._places_each = 1 + plan.prefetch
        self._num_steps = plan.samples_per_trajectory
        self._tree = LineageTree()
        self._spans: tuple[int, tuple[VersionSpan, ...]] = (-1, ())
        self.members = [Actor(depth) for depth in depths(plan.actors, fan_out=plan.fan_out)]
        self.requests: deque[Actor] = deque()
        self.num_free = 0
        # Actors that may start a task that they hold.
        self._ready: list[Actor] = []
        self.tasks: deque[Rollout] = deque()
        # Tasks of failed actors: the broker redelivers them once their acknowledgement is overdue.
        self.overdue: list[Rollout] = []
        self.waiting: list[Actor] = []
        self.slowdown = 1.0

    # -- membership ------------------------------------------------------------------------------------------------

    def join(self, actor: Actor) -> None:
        """An actor starts, or restarts."""
        if actor.alive:
            return
        self._meters.advance()
        self._meters.actors += 1
        actor.alive = True
        actor.num_free = self._places_each
        self.num_free += actor.num_free
        self.requests.append(actor)

    def leave(self, actor: Actor) -> None:
        """An actor fails; its tasks are redelivered after ``redelivery_s``."""
        if not actor.alive:
            return
        self._meters.advance()
        self._meters.actors -= 1
        actor.alive = False
        actor.attempt += 1
        self.num_free -= actor.num_free
        if actor.num_free:
            self.requests.remove(actor)
            actor.num_free = 0
        if actor.is_waiting:
            self._meters.pulling -= 1
            actor.is_waiting = False
            if actor in self.waiting:
                self.waiting.remove(actor)
        elif actor.rollout is not None:
            self._meters.busy -= 1
        if actor.rollout is not None:
            actor.held_tasks.appendleft(actor.rollout)
            actor.rollout = None
        while actor.held_tasks:
            rollout = actor.held_tasks.pop()
            self.overdue.append(rollout)
            self._events.after(self._redelivery_s, self._redeliver, rollout)

    def _redeliver(self, rollout: Rollout) -> None:
        self.overdue.remove(rollout)
        self.tasks.appendleft(rollout)

    # -- work ------------------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Actors take tasks, and start those that they can."""
        requests, tasks = self.requests, self.tasks
        while requests and tasks:
            actor = requests.popleft()
            actor.held_tasks.append(tasks.popleft())
            self._ready.append(actor)
            actor.num_free -= 1
            self.num_free -= 1
            if actor.num_free:
                requests.append(actor)
        ready, self._ready = self._ready, []
        for actor in ready:
            if actor.rollout is None and actor.held_tasks:
                actor.rollout = actor.held_tasks.popleft()
                self._begin(actor, actor.rollout)

    @property
    def has_work(self) -> bool:
        """Whether ``dispatch`` would do anything."""
        return bool(self.tasks or self._ready)

    def receive_version(self, _version: PolicyVersion, tree: LineageTree) -> None:
        """A version was announced: actors that wait for one check again."""
        self._tree = tree
        self.recheck_waiting()

    def recheck_waiting(self) -> None:
        """Actors that wait for an unpublished version check again."""
        waiting, self.waiting = self.waiting, []
        for actor in waiting:
            self._recheck((actor, actor.attempt))

    def _begin(self, actor: Actor, rollout: Rollout) -> None:
        number = self._weights.newest_at(actor.depth, at_least=actor.serving)
        if not self._may_start(number, rollout):
            self._wait(actor, rollout)
            return
        self._meters.advance()
        if actor.is_waiting:
            actor.is_waiting = False
            self._meters.pulling -= 1
        self._meters.busy += 1
        actor.serving = number
        if self._spans[0] != number:
            self._spans = (number, (VersionSpan(self._weights.version(number), 0, self._num_steps),))
        rollout.spans = self._spans[1]
        rollout.began_s = self._events.now_s
        rollout.started_at_s = self._events.now_s + actor.skew_s
        self._began(rollout)
        actor.attempt += 1
        seconds = next(self._draws) * self.slowdown + self._hop_s
        self._events.after(seconds, self._end, (actor, actor.attempt))

    def _wait(self, actor: Actor, rollout: Rollout) -> None:
        """Wait for the arrival, or first the publication, of a version that may start the task."""
        if not actor.is_waiting:
            self._meters.advance()
            self._meters.pulling += 1
            actor.is_waiting = True
        number = self._weights.newest()
        if not self._weights.alive or not self._may_start(number, rollout):
            self.waiting.append(actor)
            return
        while number > actor.serving and self._may_start(number - 1, rollout):
            number -= 1
        arrival_s = self._weights.arrival_s(number, actor.depth)
        self._events.at(arrival_s, self._recheck, (actor, actor.attempt))

    def _may_start(self, number: int, rollout: Rollout) -> bool:
        version = self._weights.version(number)
        return version.lineage in self._tree.lineages and self._tree.satisfies(version, rollout.required)

    def _recheck(self, argument: tuple[Actor, int]) -> None:
        actor, attempt = argument
        if actor.attempt == attempt and actor.rollout is not None and actor.is_waiting:
            self._begin(actor, actor.rollout)

    def _end(self, argument: tuple[Actor, int]) -> None:
        actor, attempt = argument
        rollout = actor.rollout
        if actor.attempt != attempt or rollout is None:  # it failed meanwhile
            return
        self._meters.advance()
        self._meters.busy -= 1
        actor.rollout = None
        if not actor.num_free:
            self.requests.append(actor)
        actor.num_free += 1
        self.num_free += 1
        if actor.held_tasks:
            self._ready.append(actor)
        self._finished(rollout)
