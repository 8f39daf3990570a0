"""An environment that is easy to predict: the observation counts its steps, and ends come on schedule.

Named ``tests.unit.actor.toy_env:Counting-v0``, which is also how a run names an environment of its own.
"""

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription

ENV_ID = "tests.unit.actor.toy_env:Counting-v0"
EPISODE_STEPS = 3
DESCRIPTION = EnvironmentDescription(
    env_id=ENV_ID,
    observation_space=BoxSpace((2,), "float32", (-math.inf,), (math.inf,)),
    action_space=DiscreteSpace(3, start=5),
)

# Called before each step of each copy; tests use it to swap policies and to fail.
before_step: list[Callable[[], None]] = []


class Counting(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Episodes of three steps: reward 1, 2, 3; odd ones are terminated, even ones truncated."""

    def __init__(self) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(3, start=5)
        self.num_episodes = 0
        self.step_in_episode = 0
        self.actions: list[int] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.num_episodes += 1
        self.step_in_episode = 0
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        for call in before_step:
            call()
        assert action in (5, 6, 7)
        self.step_in_episode += 1
        ends = self.step_in_episode == EPISODE_STEPS
        odd = self.num_episodes % 2 == 1
        return self._observe(), float(self.step_in_episode), ends and odd, ends and not odd, {}

    def _observe(self) -> NDArray[np.float32]:
        return np.array([self.num_episodes, self.step_in_episode], np.float32)


_registry: Any = gymnasium
_registry.register("Counting-v0", entry_point=Counting)
