"""Trainers of replayed units whose policy is how many they were trained on."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tidegate.core.records import Array
from tidegate.core.response import FRESH, Response
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.optim.replay_port import ReplayUnits

TOTAL = "policy.total"


class CountingTrainers:
    """One for each learner of a test: the thread of a killed learner may still be at its update when the next restores.

    ``check``: raises for units that do not fit. ``priority``: what every unit is given; None gives none.
    """

    def __init__(self) -> None:
        self.drawn: list[ReplayUnits] = []
        self.check: Callable[[ReplayUnits], None] = lambda units: None
        self.priority: float | None = 1.0
        self._newest = CountingTrainer(self)

    @property
    def total(self) -> int:
        """How many units the newest learner was trained on, those before its checkpoint included."""
        return self._newest.total

    def open(self) -> "CountingTrainer":
        """The trainer of the next learner."""
        self._newest = CountingTrainer(self)
        return self._newest


class CountingTrainer:
    """The trainer of one learner."""

    def __init__(self, settings: CountingTrainers) -> None:
        self.total = 0
        self._settings = settings
        self._priorities: NDArray[np.float32] | None = None

    def prepare(self, units: ReplayUnits) -> ReplayUnits:
        self._settings.check(units)
        return units

    def update(self, batch: ReplayUnits, *, number: int, response: Response = FRESH) -> dict[str, float]:
        del response
        self.total += len(batch)
        self._settings.drawn.append(batch)
        priority = self._settings.priority
        self._priorities = None if priority is None else np.full(len(batch), priority, np.float32)
        return {"loss": 1.0 / number}

    def priorities(self) -> NDArray[np.float32] | None:
        return self._priorities

    def policy(self) -> dict[str, Array]:
        return {TOTAL: np.array([self.total], np.float32)}

    def state(self) -> TrainerState:
        return TrainerState(tensors={}, values={})

    def restore(self, policy: Mapping[str, Array], state: TrainerState) -> None:
        del state
        self.total = int(policy[TOTAL][0])
