"""An environment of one's own: walk along a line to the end that each episode asks for.

`make run` does not know it; `tidegate up examples/own_environment/run.yaml` started in this folder finds it by its name
``line_world:LineWorld-v0``.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Observation = dict[str, Any]


class LineWorld(gymnasium.Env[Observation, NDArray[np.int64]]):
    """Observes its place in [-1, 1] and which end is the goal; an action is a direction and a pace."""

    def __init__(self, *, pace: float = 0.05, steps_max: int = 50) -> None:
        """``pace``: distance of a slow step. ``steps_max``: steps after which an episode is truncated."""
        self.observation_space: Any = spaces.Dict(
            {"place": spaces.Box(-1.0, 1.0, (1,), np.float32), "goal": spaces.Discrete(2)}
        )
        self.action_space: Any = spaces.MultiDiscrete([2, 3])
        self._pace, self._steps_max = pace, steps_max
        self._place, self._goal, self._num_steps = 0.0, 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start in the middle, with a goal that is drawn from the seed."""
        super().reset(seed=seed)
        self._place, self._goal, self._num_steps = 0.0, int(self.np_random.integers(2)), 0
        return self._observe(), {}

    def step(self, action: NDArray[np.int64]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Go ``pace`` times 0, 1 or 2 to the left or right; reaching the goal ends the episode with a reward of 1."""
        direction, pace = int(action[0]), int(action[1])
        self._place = float(np.clip(self._place + (2 * direction - 1) * pace * self._pace, -1.0, 1.0))
        self._num_steps += 1
        reached = abs(self._place - (2 * self._goal - 1)) < self._pace
        return self._observe(), 1.0 if reached else -0.05, reached, self._num_steps >= self._steps_max, {}

    def _observe(self) -> Observation:
        return {"place": np.array([self._place], np.float32), "goal": self._goal}


_registry: Any = gymnasium
_registry.register("LineWorld-v0", entry_point=LineWorld)
