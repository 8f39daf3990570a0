"""Environment workers: one queue, ``environments`` workers, first in first out."""

from collections import deque
from collections.abc import Callable

from tidegate.fleet.draws import Draws
from tidegate.fleet.event_queue import EventQueue
from tidegate.fleet.meters import Meters
from tidegate.fleet.rollout import Rollout


class FleetEnvironments:
    """Scores rollouts. Its queue is bounded by what is in flight; a worker that ends takes the next."""

    def __init__(
        self,
        workers: int,
        draws: Draws,
        events: EventQueue,
        meters: Meters,
        *,
        scored: Callable[[Rollout], None],
    ) -> None:
        """``scored`` is called with each scored rollout."""
        self._workers = workers
        self._draws = draws
        self._events = events
        self._meters = meters
        self._scored = scored
        self.queued: deque[Rollout] = deque()
        self.being_scored: dict[int, Rollout] = {}
        self._number = 0
        self.alive = True
        self.slowdown = 1.0

    def take(self, rollout: Rollout) -> None:
        """A rollout arrived."""
        self.queued.append(rollout)
        self._begin()

    def stop(self) -> None:
        """All workers fail; their rollouts return to the head of the queue."""
        self.alive = False
        self._meters.advance()
        self._meters.scoring -= len(self.being_scored)
        self.queued.extendleft(reversed(self.being_scored.values()))
        self.being_scored.clear()

    def restart(self) -> None:
        """All workers are back."""
        self.alive = True
        self._begin()

    def _begin(self) -> None:
        while self.alive and self.queued and len(self.being_scored) < self._workers:
            self._meters.advance()
            self._meters.scoring += 1
            self._number += 1
            self.being_scored[self._number] = self.queued.popleft()
            self._events.after(next(self._draws) * self.slowdown, self._end, self._number)

    def _end(self, number: int) -> None:
        rollout = self.being_scored.pop(number, None)
        if rollout is None:  # its worker failed meanwhile
            return
        self._meters.advance()
        self._meters.scoring -= 1
        self._scored(rollout)
        self._begin()
