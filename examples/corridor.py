"""A corridor that proves memory: the turn at its end is shown only at its start.

`runs/corridor.yaml` trains on it by the id `examples.corridor:Corridor-v0`, which this module registers when it is
imported. A policy without memory cannot do better than chance, a mean return of 0.5, unless more frames are stacked
than the corridor has steps: actions on the way change nothing, so that none carries the sign along.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

LEFT, RIGHT = 0, 1


class Corridor(gymnasium.Env[NDArray[np.float32], np.int64]):
    """``length`` steps; the last one is a turn, rewarded with 1 if it is the one that the sign showed, else with 0.

    Observations: the sign (-1 left, 1 right; 0 everywhere but at the start), and how far the way is walked (0 to 1).
    """

    def __init__(self, *, length: int = 30) -> None:
        """``length``: steps of an episode, at least 1."""
        self.observation_space = spaces.Box(np.array([-1, 0], np.float32), np.ones(2, np.float32))
        action_space: Any = spaces.Discrete(2)
        self.action_space = action_space
        self._length = length
        self._turn = LEFT
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """The start, where the sign stands."""
        super().reset(seed=seed)
        self._turn = int(self.np_random.integers(2))
        self._step = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Walk on, whatever the action; at the end turn."""
        self._step += 1
        is_over = self._step == self._length
        return self._observation(), float(is_over and int(action) == self._turn), is_over, False, {}

    def _observation(self) -> NDArray[np.float32]:
        sign = 0.0 if self._step else 2.0 * self._turn - 1.0
        return np.array([sign, self._step / self._length], np.float32)


_gymnasium: Any = gymnasium
_gymnasium.register("Corridor-v0", entry_point=Corridor)
