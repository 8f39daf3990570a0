"""A trainer of replayed units whose policy is how many it was trained on."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tidegate.core.records import Array
from tidegate.core.response import FRESH, Response
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.optim.replay_port import ReplayUnits

TOTAL = "policy.total"


class CountingTrainer:
    """``check``: raises for units that do not fit. ``priority``: what every unit is given; None gives none."""

    def __init__(self) -> None:
        self.total = 0
        self.drawn: list[ReplayUnits] = []
        self.check: Callable[[ReplayUnits], None] = lambda units: None
        self.priority: float | None = 1.0
        self._priorities: NDArray[np.float32] | None = None

    def prepare(self, units: ReplayUnits) -> ReplayUnits:
        self.check(units)
        return units

    def update(self, batch: ReplayUnits, *, number: int, response: Response = FRESH) -> dict[str, float]:
        del response
        self.total += len(batch)
        self.drawn.append(batch)
        self._priorities = None if self.priority is None else np.full(len(batch), self.priority, np.float32)
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
