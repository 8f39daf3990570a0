"""Environment workers: one line, ``environments`` of them, first come first served."""

from collections import deque
from collections.abc import Callable

from tidegate.fleet.agenda import Agenda
from tidegate.fleet.draws import Draws
from tidegate.fleet.meters import Meters
from tidegate.fleet.rollout import Rollout


class Environments:
    """Scores rollouts. Its line is bounded by what is in flight; a worker's end frees a place."""

    def __init__(
        self, workers: int, draws: Draws, agenda: Agenda, meters: Meters, *, scored: Callable[[Rollout], None]
    ) -> None:
        """``scored`` takes what is finished."""
        self._workers = workers
        self._draws = draws
        self._agenda = agenda
        self._meters = meters
        self._scored = scored
        self.line: deque[Rollout] = deque()
        self.at_work: dict[int, Rollout] = {}
        self._number = 0
        self.alive = True
        self.slowed = 1.0

    def take(self, rollout: Rollout) -> None:
        """A rollout arrived."""
        self.line.append(rollout)
        self._begin()

    def die(self) -> None:
        """What was being scored goes back to the head of the line."""
        self.alive = False
        self._meters.advance()
        self._meters.scoring -= len(self.at_work)
        self.line.extendleft(reversed(self.at_work.values()))
        self.at_work.clear()

    def revive(self) -> None:
        """All workers are back."""
        self.alive = True
        self._begin()

    def _begin(self) -> None:
        while self.alive and self.line and len(self.at_work) < self._workers:
            self._meters.advance()
            self._meters.scoring += 1
            self._number += 1
            self.at_work[self._number] = self.line.popleft()
            self._agenda.after(next(self._draws) * self.slowed, self._end, self._number)

    def _end(self, number: int) -> None:
        rollout = self.at_work.pop(number, None)
        if rollout is None:  # its worker died meanwhile
            return
        self._meters.advance()
        self._meters.scoring -= 1
        self._scored(rollout)
        self._begin()
