"""CartPole in copies that go wrong, by their ids as a run file names them: ``benchmarks.faulty_envs:Raises-v0``."""

import itertools
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

MODULE = "benchmarks.faulty_envs"
HEALTHY, RAISES, NOT_FINITE, HANGS = (
    f"{MODULE}:{name}-v0" for name in ("Healthy", "Raises", "NotFinite", "Hangs")
)
EPISODE_STEPS = 500
RAISES_EVERY_STEPS = 5_000
# The first copies of a process begin between two exceptions, so that these come one by one and from the start.
NUM_STAGGERED = 16
# An actor that hangs has begun to train; a copy makes so many steps in a few seconds.
HANGS_AFTER_STEPS = 1_000

Wrapped = gymnasium.Wrapper[Any, Any, Any, Any]


class Raises(Wrapped):
    """Each copy raises at every ``RAISES_EVERY_STEPS``-th of its steps."""

    offsets: ClassVar[Iterator[int]] = itertools.chain(
        range(0, RAISES_EVERY_STEPS, RAISES_EVERY_STEPS // NUM_STAGGERED), itertools.repeat(0)
    )

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.num_steps = next(Raises.offsets)

    def step(self, action: Any) -> Any:
        """Step, or raise."""
        self.num_steps += 1
        if self.num_steps % RAISES_EVERY_STEPS == 0:
            raise ValueError("the simulator diverged")
        return self.env.step(action)


class NotFinite(Wrapped):
    """One copy of a process observes NaN in each step; closed, it leaves the defect to the copy made next."""

    defect_is_free: ClassVar[bool] = True

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.defective = NotFinite.defect_is_free
        NotFinite.defect_is_free = False

    def step(self, action: Any) -> Any:
        """Step; the defective copy's cart is nowhere."""
        observation, *rest = self.env.step(action)
        if self.defective:
            observation[0] = float("nan")
        return (observation, *rest)

    def close(self) -> None:
        """Release the environment."""
        NotFinite.defect_is_free |= self.defective
        self.env.close()


class Hangs(Wrapped):
    """Hangs for ever, in the first actor, whenever a copy has made ``HANGS_AFTER_STEPS``."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.num_steps = 0
        self.hangs = _is_first_actor()

    def step(self, action: Any) -> Any:
        """Step, or never return."""
        self.num_steps += 1
        if self.hangs and self.num_steps > HANGS_AFTER_STEPS:
            time.sleep(1e6)
        return self.env.step(action)


def _is_first_actor() -> bool:
    command = Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ").strip()
    return b"serve actor" in command and command.endswith(b"--index 0")


def _cartpole(fault: Callable[[Any], Any]) -> Any:
    return fault(CartPoleEnv())


_registry: Any = gymnasium
_registry.register("Healthy-v0", entry_point=CartPoleEnv, max_episode_steps=EPISODE_STEPS)
for _fault in (Raises, NotFinite, Hangs):
    _registry.register(
        f"{_fault.__name__}-v0", entry_point=partial(_cartpole, _fault), max_episode_steps=EPISODE_STEPS
    )
