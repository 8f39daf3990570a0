"""An environment that fails exactly where its script says, and counts what is done to it."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

ENV_ID = "tests.unit.vector_envs.scripted_envs:Scripted-v0"
EPISODE_STEPS = 3

Event = Literal["raise", "exit", "nan", "inf reward", "shape"]
Observation = NDArray[np.float32]


@dataclass
class Script:
    """What happens at which call, counted from 0 over all environments made with this script."""

    steps: dict[int, Event] = field(default_factory=dict[int, Event])
    resets: dict[int, Event] = field(default_factory=dict[int, Event])
    makes: frozenset[int] = frozenset()
    num_steps: int = 0
    num_resets: int = 0
    num_made: int = 0
    num_closed: int = 0
    seeds: list[int | None] = field(default_factory=list[int | None])

    def made(self) -> None:
        self.num_made += 1
        if self.num_made - 1 in self.makes:
            raise OSError("no more licences")

    def take_step(self) -> Event | None:
        self.num_steps += 1
        return _now(self.steps.get(self.num_steps - 1))

    def take_reset(self, seed: int | None) -> Event | None:
        self.num_resets += 1
        self.seeds.append(seed)
        return _now(self.resets.get(self.num_resets - 1))


def _now(event: Event | None) -> Event | None:
    if event == "raise":
        raise ValueError("the simulator diverged")
    if event == "exit":
        raise SystemExit(3)
    return event


class ScriptedEnv(gymnasium.Env[Observation, np.int64]):
    """Observes [number of resets, steps in the episode]; reward 1 a step; terminates after three steps."""

    def __init__(self, script: Script) -> None:
        script.made()
        self.script = script
        self.observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)
        self.steps_in_episode = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        event = self.script.take_reset(seed)
        self.steps_in_episode = 0
        return self._observe(event), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        event = self.script.take_step()
        self.steps_in_episode += 1
        reward = float("inf") if event == "inf reward" else 1.0
        return self._observe(event), reward, self.steps_in_episode == EPISODE_STEPS, False, {"a": 1}

    def close(self) -> None:
        self.script.num_closed += 1
        raise RuntimeError("closing fails too")

    def _observe(self, event: Event | None) -> Observation:
        if event == "shape":
            return np.zeros(1, np.float32)
        second = np.nan if event == "nan" else self.steps_in_episode
        return np.array([self.script.num_resets, second], np.float32)


class ScriptedForm(VectorEnv[Any, Any, Any]):
    """A vector form of the same; an event touches its second column."""

    def __init__(self, script: Script, *, num_envs: int) -> None:
        script.made()
        self.script = script
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space: spaces.Space[Any] = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        # A form may write into the arrays that it returned.
        self.buffer = np.zeros((num_envs, 2), np.float32)
        self.ended = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        event = self.script.take_reset(seed)
        self.ended = False
        return self._observe(event, steps=0), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        event = self.script.take_step()
        steps = 0 if self.ended else int(self.buffer[0, 1]) + 1
        if self.ended:
            self.script.num_resets += 1
        rewards = np.full(self.num_envs, 0.0 if self.ended else 1.0)
        if event == "inf reward":
            rewards[1] = np.inf
        self.ended = steps == EPISODE_STEPS
        flags = np.full(self.num_envs, self.ended)
        return self._observe(event, steps=steps), rewards, flags, np.zeros_like(flags), {}

    def close_extras(self, **kwargs: Any) -> None:
        self.script.num_closed += 1

    def _observe(self, event: Event | None, *, steps: int) -> Any:
        self.buffer[:] = [self.script.num_resets, steps]
        if event == "nan":
            self.buffer[1, 1] = np.nan
        return self.buffer


# What environments made by their id do, in the order in which they are made; later ones are healthy.
scripts: deque[Script] = deque()


def _scripted() -> ScriptedEnv:
    return ScriptedEnv(scripts.popleft() if scripts else Script())


_registry: Any = gymnasium
_registry.register("Scripted-v0", entry_point=_scripted)
