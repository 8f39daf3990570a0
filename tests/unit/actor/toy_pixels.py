"""An environment with images that are easy to predict: the newest of two stacked frames counts episodes and steps.

Named ``tests.unit.actor.toy_pixels:Pixels-v0``.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription

SIDE = 36
EPISODE_STEPS = 3
DESCRIPTION = EnvironmentDescription(
    env_id="tests.unit.actor.toy_pixels:Pixels-v0",
    observation_space=BoxSpace((2, SIDE, SIDE), "uint8", (0.0,), (255.0,)),
    action_space=DiscreteSpace(3),
)
# Called before each step of each copy.
before_step: list[Callable[[], None]] = []


class Pixels(gymnasium.Env[NDArray[np.uint8], np.int64]):
    """Episodes of three steps; the older frame is zeros at their start."""

    def __init__(self) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(0, 255, (2, SIDE, SIDE), np.uint8)
        self.action_space: spaces.Space[Any] = spaces.Discrete(3)
        self.num_episodes = 0
        self.step_in_episode = 0
        self.frames = np.zeros((2, SIDE, SIDE), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self.num_episodes += 1
        self.step_in_episode = 0
        self.frames = np.zeros((2, SIDE, SIDE), np.uint8)
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        for call in before_step:
            call()
        self.step_in_episode += 1
        return self._observe(), 1.0, self.step_in_episode == EPISODE_STEPS, False, {}

    def _observe(self) -> NDArray[np.uint8]:
        self.frames[0] = self.frames[1]
        self.frames[1] = 10 * self.num_episodes + self.step_in_episode
        return self.frames  # the same memory each time


_registry: Any = gymnasium
_registry.register("Pixels-v0", entry_point=Pixels)
