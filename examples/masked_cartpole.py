"""CartPole without velocities: one observation does not show which way the pole moves, so a policy needs memory.

`runs/recurrent.yaml` trains on it by the id `examples.masked_cartpole:MaskedCartPole-v0`, which this module registers
when it is imported. The same file would do for an environment of your own.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

SHOWN = np.array([0, 2])  # the cart's position and the pole's angle


class MaskedCartPole(gymnasium.ObservationWrapper[NDArray[np.float32], np.int64, NDArray[np.float32]]):
    """CartPole-v1 that shows only positions."""

    def __init__(self) -> None:
        """The plain environment; Gymnasium adds the time limit."""
        env: Any = CartPoleEnv()
        super().__init__(env)
        whole = env.observation_space
        self.observation_space = spaces.Box(whole.low[SHOWN], whole.high[SHOWN], dtype=np.float32)

    def observation(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        """Positions alone."""
        return observation[SHOWN]


_gymnasium: Any = gymnasium
_gymnasium.register("MaskedCartPole-v0", entry_point=MaskedCartPole, max_episode_steps=500)
