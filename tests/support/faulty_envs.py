"""Environments of one's own that go wrong on purpose, by their ids as a run file names them.

Each is ``Walk`` beside its fault: a walk on the line from the middle of nine fields, +1 for the right end, -1 for the
left one. ``tests.support.faulty_envs:Raises-v0`` and so on.
"""

import os
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

MODULE = "tests.support.faulty_envs"
HEALTHY, RAISES, NOT_FINITE, HANGS = (
    f"{MODULE}:{name}-v0" for name in ("Healthy", "Raises", "NotFinite", "Hangs")
)
NUM_FIELDS = 9
EPISODE_STEPS = 40
# An environment hangs only in the actor whose process may create this file, so that exactly one of a run does.
HANG_FILE_VARIABLE = "TIDEGATE_TEST_HANG_FILE"

Observation = NDArray[np.float32]


class Walk(gymnasium.Env[Observation, np.int64]):
    """The walk; ``steps_of_copy`` counts all steps that this object ever made."""

    def __init__(self) -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)
        self.field = 0
        self.steps_in_episode = 0
        self.steps_of_copy = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.field = NUM_FIELDS // 2 + int(self.np_random.integers(-1, 2))
        self.steps_in_episode = 0
        return self.observe(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.steps_of_copy += 1
        self.steps_in_episode += 1
        self.field += 1 if action else -1
        terminated = self.field in (0, NUM_FIELDS - 1)
        reward = float(np.sign(self.field - NUM_FIELDS // 2)) if terminated else 0.0
        return self.observe(), reward, terminated, self.steps_in_episode >= EPISODE_STEPS, {}

    def observe(self) -> Observation:
        return np.array(
            [2.0 * self.field / (NUM_FIELDS - 1) - 1.0, self.steps_in_episode / EPISODE_STEPS], np.float32
        )


class Raises(Walk):
    """Every copy raises at each ``period``-th of its steps; with a period below 3 only in actors."""

    def __init__(self, period: int = 5_000) -> None:
        super().__init__()
        self.period = period

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if (self.steps_of_copy + 1) % self.period == 0 and (self.period > 2 or _is_actor()):
            raise ValueError("the simulator diverged")
        return super().step(action)


class NotFinite(Walk):
    """One copy of a process observes NaN in each step; closed, it leaves the defect to the copy made next."""

    defect_is_free: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.defective = NotFinite.defect_is_free
        NotFinite.defect_is_free = False

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.defective:
            observation[1] = np.nan
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        NotFinite.defect_is_free |= self.defective


class Hangs(Walk):
    """Hangs for ever after ``after`` steps of a copy, in the process that created the file of HANG_FILE_VARIABLE."""

    def __init__(self, after: int = 2_000) -> None:
        super().__init__()
        self.after = after

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if self.steps_of_copy >= self.after and _may_hang():
            time.sleep(1e6)
        return super().step(action)


class OnlyDescribed(Walk):
    """Cannot be reset in an actor, as if something were missing on its machine."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        if _is_actor():
            raise OSError("the renderer needs a display")
        return super().reset(seed=seed, options=options)


def _is_actor() -> bool:
    """Whether this process is an actor; other services open the environment too, to describe it."""
    return b"serve actor" in Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ")


def _may_hang() -> bool:
    """Whether this process is the actor that hangs: the first that asks; none without the variable."""
    name = os.environ.get(HANG_FILE_VARIABLE)
    if name is None or not _is_actor():
        return False
    try:
        with Path(name).open("x", encoding="ascii") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return Path(name).read_text(encoding="ascii") == str(os.getpid())
    return True


_registry: Any = gymnasium
_registry.register("Healthy-v0", entry_point=Walk)
_registry.register("Raises-v0", entry_point=Raises)
_registry.register("NotFinite-v0", entry_point=NotFinite)
_registry.register("Hangs-v0", entry_point=Hangs)
_registry.register("OnlyDescribed-v0", entry_point=OnlyDescribed)
