"""A Gymnasium environment: walk along a line to the end that each episode asks for. Replace it by your own."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Line(gymnasium.Env):
    """Observes its place in [-1, 1] and the goal, -1 or 1; an action goes left (0) or right (1)."""

    def __init__(self):
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        """Start in the middle."""
        super().reset(seed=seed)
        self.place, self.goal = 0.0, float(self.np_random.choice([-1.0, 1.0]))
        return self.observed(), {}

    def step(self, action):
        """One step; reaching the goal ends the episode with a reward of 1."""
        self.place = float(np.clip(self.place + (0.1 if action == 1 else -0.1), -1.0, 1.0))
        reached = abs(self.place - self.goal) < 0.05
        return self.observed(), 1.0 if reached else -0.05, reached, False, {}

    def observed(self):
        return np.array([self.place, self.goal], np.float32)


# `run.yaml` names it as `my_env:Line-v0`.
gymnasium.register("Line-v0", entry_point=Line, max_episode_steps=50)
