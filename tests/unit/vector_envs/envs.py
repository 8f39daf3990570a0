"""Environments of many kinds, good and broken, as a user's module registers them."""

import importlib
import math
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

MODULE = "tests.unit.vector_envs.envs"


class Scripted(gymnasium.Env[Any, Any]):
    """Gives observations of a space, numbered by episode and step; episodes have ``length`` steps."""

    def __init__(self, space: spaces.Space[Any], actions: spaces.Space[Any], *, length: int = 3) -> None:
        self.observation_space: spaces.Space[Any] = space
        self.action_space: spaces.Space[Any] = actions
        self.length = length
        self.num_episodes = 0
        self.step_in_episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.num_episodes += 1
        self.step_in_episode = 0
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_in_episode += 1
        return self.observation(), 1.0, self.step_in_episode == self.length, False, {}

    def observation(self) -> Any:
        """The number of the observation in each component of a Box, else a sample."""
        space: Any = self.observation_space
        if not isinstance(space, spaces.Box):
            return space.sample()
        number = 10 * self.num_episodes + self.step_in_episode
        shape: tuple[int, ...] = space.shape
        values: NDArray[np.int64] = number + np.arange(math.prod(shape)).reshape(shape)
        return values.astype(str(cast("Any", space).dtype))


def box(shape: tuple[int, ...], dtype: Any = np.float32) -> spaces.Space[Any]:
    return spaces.Box(0, 255, shape, dtype)


ACTIONS: spaces.Space[Any] = spaces.Discrete(2)
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "Numbers": box((2,)),
    "Image": box((6, 5), np.uint8),
    "ChannelsFirst": box((3, 6, 5), np.uint8),
    "ChannelsLast": box((6, 5, 3), np.uint8),
    "Volume": box((2, 2, 2, 2)),
    "Index": spaces.Discrete(4, start=2),
    "Flags": spaces.MultiBinary(3),
    "Indices": spaces.MultiDiscrete([2, 3]),
    "Parts": spaces.Dict({"where": box((2,)), "which": spaces.Discrete(3)}),
    "Pair": spaces.Tuple((box((2,)), spaces.Discrete(3))),
    "Words": spaces.Dict({"where": box((2,)), "what": spaces.Text(8)}),
}


class BreaksWhenMade(Scripted):
    def __init__(self) -> None:
        super().__init__(box((2,)), ACTIONS)
        raise RuntimeError("no licence")


class BreaksInReset(Scripted):
    def __init__(self) -> None:
        super().__init__(box((2,)), ACTIONS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        raise OSError("the level file is missing")


class BreaksInStep(Scripted):
    def __init__(self) -> None:
        super().__init__(box((2,)), ACTIONS)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        state: dict[str, Any] = {}
        return state["position"]


class ForgetsInfo(Scripted):
    def __init__(self) -> None:
        super().__init__(box((2,)), ACTIONS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0]


class OldStep(Scripted):
    """Steps as gym did: one flag, which says that the episode is done."""

    def __init__(self) -> None:
        super().__init__(box((2,)), ACTIONS)

    def step(self, action: Any) -> Any:
        return self.observation(), 1.0, False, {}


class WrongShape(Scripted):
    def __init__(self) -> None:
        super().__init__(box((2,)), ACTIONS)

    def observation(self) -> Any:
        return np.zeros(3, np.float32)


class OutOfRange(Scripted):
    def __init__(self) -> None:
        super().__init__(spaces.Discrete(4), ACTIONS)

    def observation(self) -> Any:
        return np.int64(4)


class NeedsPackage(Scripted):
    def __init__(self) -> None:
        super().__init__(box((2,)), ACTIONS)
        importlib.import_module("no_such_engine.bindings")


class Vectorised(VectorEnv[Any, Any, Any]):
    """A vector form of its own, which resets by NEXT_STEP."""

    def __init__(
        self, num_envs: int, *, size: int = 2, mode: AutoresetMode = AutoresetMode.NEXT_STEP
    ) -> None:
        self.metadata = {"autoreset_mode": mode}
        self.num_envs = num_envs
        self.single_observation_space: Any = box((size,))
        self.single_action_space: Any = ACTIONS
        self.observation_space: Any = spaces.Box(0, 255, (num_envs, size), np.float32)
        self.action_space: Any = spaces.MultiDiscrete([2] * num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        ended = np.zeros(self.num_envs, np.bool_)
        return np.zeros(self.observation_space.shape, np.float32), np.zeros(self.num_envs), ended, ended, {}


class ResetsInTheSameStep(Vectorised):
    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, mode=AutoresetMode.SAME_STEP)


class Configurable(Vectorised):
    """Resets as its argument says, and by default otherwise than segments need."""

    def __init__(self, num_envs: int, *, autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP) -> None:
        super().__init__(num_envs, mode=autoreset_mode)


_registry: Any = gymnasium
for _name, _space in OBSERVATIONS.items():
    _registry.register(f"{_name}-v0", entry_point=Scripted, kwargs={"space": _space, "actions": ACTIONS})
for _broken in (
    BreaksWhenMade,
    BreaksInReset,
    BreaksInStep,
    ForgetsInfo,
    OldStep,
    WrongShape,
    OutOfRange,
    NeedsPackage,
):
    _registry.register(f"{_broken.__name__}-v0", entry_point=_broken)
for _native in (Vectorised, ResetsInTheSameStep, Configurable):
    _registry.register(f"{_native.__name__}-v0", vector_entry_point=_native, max_episode_steps=None)
_registry.register(
    "Limited-v0",
    entry_point=Scripted,
    max_episode_steps=7,
    kwargs={"space": OBSERVATIONS["Numbers"], "actions": ACTIONS},
)
