"""The learner's updates as curves, followed while the file grows and thinned to what a drawing can show."""

from pathlib import Path
from typing import Any

from tidegate.cli.step_tail import StepTail, curves_of
from tidegate.cli.thinning import thin

# Of a curve that a page receives.
POINTS_MAX = 800
# Of a curve in memory, 16 bytes each: beyond it every second point goes, and from then on every second update is kept.
POINTS_KEPT_MAX = 20_000


class Curves:
    """Every number of the updates of one run, by name. Not safe for threads: one caller at a time.

    Memory is bounded by ``POINTS_KEPT_MAX`` a name.
    """

    def __init__(self, folder: Path) -> None:
        """``folder``: the run's."""
        self._tail = StepTail(folder)
        self._begin()

    def _begin(self) -> None:
        self._steps: list[tuple[int, float, float]] = []  # (step, seconds since the first update, env steps)
        self._values: dict[str, list[tuple[int, float]]] = {}  # (index of the update, value)
        self._num_updates = 0
        self._stride = 1
        self._first_at_s = 0.0

    def follow(self) -> int:
        """Read what was appended since the last call; returns how many updates were read since the beginning."""
        from_first, updates = self._tail.new()
        if from_first:
            self._begin()
        for update in updates:
            self._add(update)
        return self._num_updates

    def _add(self, update: dict[str, Any]) -> None:
        if not _is_number(update.get("at_s")):
            return
        if self._num_updates == 0:
            self._first_at_s = update["at_s"]
        index = self._num_updates
        self._num_updates += 1
        if index % self._stride:
            return
        self._steps.append(
            (update.get("step", index), update["at_s"] - self._first_at_s, update.get("env_steps", 0))
        )
        for name, value in curves_of(update).items():
            if name != "env_steps":  # an axis of the others
                self._values.setdefault(name, []).append((len(self._steps) - 1, value))
        if len(self._steps) >= POINTS_KEPT_MAX:
            self._halve()

    def _halve(self) -> None:
        self._stride *= 2
        self._steps = self._steps[::2]
        self._values = {
            name: [(index // 2, value) for index, value in points if index % 2 == 0]
            for name, points in self._values.items()
        }

    def answer(self) -> dict[str, Any]:
        """For each name its points: ``step``, ``at_s`` since the first update, ``env_steps``, ``value``."""
        return {name: self._curve(points) for name, points in sorted(self._values.items())}

    def _curve(self, points: list[tuple[int, float]]) -> dict[str, list[float]]:
        thinned = thin([(float(index), value) for index, value in points], most=POINTS_MAX)
        places = [self._steps[int(index)] for index, _ in thinned]
        return {
            "step": [step for step, _, _ in places],
            "at_s": [round(at_s, 3) for _, at_s, _ in places],
            "env_steps": [env_steps for _, _, env_steps in places],
            "value": [value for _, value in thinned],
        }


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
