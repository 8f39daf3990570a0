"""The last K observations of each environment as one observation."""

from typing import Any, cast

import gymnasium.spaces as gym_spaces
import numpy as np
from gymnasium.vector import VectorWrapper
from gymnasium.vector.utils import batch_space

from tidegate.core.errors import ConfigError
from tidegate.core.records import Array


class FrameStack(VectorWrapper[Any, Any, Any, Any, Any]):
    """Stacks Box observations, the newest one last; observations before an episode's first one are zeros.

    A vector of F numbers becomes (K, F), an image (height, width) becomes (K, height, width), one with channels behind
    (K, height, width, channels); with channels in front it has K times as many. Zeros because Atari's own vector form
    has them, too: each observation is then a shift of the one before, except for the first one of an episode.
    """

    def __init__(self, env: Any, num_frames: int) -> None:
        """``env`` resets by NEXT_STEP.

        Raises:
            ConfigError: the observations are no Box, or have more than three dimensions.
        """
        super().__init__(env)
        space: Any = env.single_observation_space
        if not isinstance(space, gym_spaces.Box) or len(space.shape) > 3:
            raise ConfigError(
                "workload.frame_stack does not fit the environment's observations",
                why=f"they are {space}; only Box observations of at most three dimensions are stacked",
                fix="set workload.frame_stack to 1, or flatten them by the wrapper FlattenObservation",
            )
        box = cast("Any", space)
        shape: tuple[int, ...] = box.shape
        dtype = np.dtype(box.dtype)
        self._lengthens_first_axis = len(shape) == 3 and shape[0] <= shape[2]
        self._frames_NKS: Array = np.zeros((env.num_envs, num_frames, *shape), dtype)
        self._done_N = np.zeros(env.num_envs, np.bool_)
        low: Array
        high: Array
        low, high = (
            self._stacked(np.repeat(np.asarray(bound, dtype)[None, None], num_frames, axis=1))[0]
            for bound in (box.low, box.high)
        )
        zero: Array = np.zeros((), dtype)
        self.single_observation_space = gym_spaces.Box(
            np.minimum(low, zero), np.maximum(high, zero), dtype=dtype.type
        )
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Start all episodes."""
        envs: Any = self.env  # its type knows no list of seeds, which vector forms accept
        observations, infos = envs.reset(seed=seed, options=options)
        self._frames_NKS[...] = 0
        self._done_N[:] = False
        return self._push(observations), infos

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Step all environments; one whose episode had ended begins its next one with this step."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        self._frames_NKS[self._done_N] = 0
        self._done_N = np.logical_or(terminated, truncated)
        return self._push(observations), rewards, terminated, truncated, infos

    def _push(self, observations: Array) -> Array:
        frames_NKS = self._frames_NKS
        frames_NKS[:, :-1] = frames_NKS[:, 1:]
        frames_NKS[:, -1] = observations
        return self._stacked(frames_NKS).copy()

    def _stacked(self, frames_NKS: Array) -> Array:
        """Frames (N, K, ...) as observations."""
        if not self._lengthens_first_axis:
            return frames_NKS
        num_envs, num_frames, num_channels, *sides = frames_NKS.shape
        return frames_NKS.reshape(num_envs, num_frames * num_channels, *sides)
