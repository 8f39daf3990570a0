"""One answer, or one episode of several turns, that a version of a run is to give."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from tidegate.actor.rollouts.heldout import HeldOutProblem

# Called with the number of answers or episodes that have finished since the last call.
OnProgress: TypeAlias = Callable[[int], None]

# Written, or played, at once.
SLOTS = 64


class Asked(NamedTuple):
    """``env``: the environment by its name in the run. Temperature 0 is greedy; ``seed``: of all draws."""

    env: str
    problem: HeldOutProblem
    temperature: float
    seed: int


def seed_of(seed: int, number: int, sample: int) -> int:
    """A seed of 64 bits for each answer to each problem of a set."""
    return (seed * 1_000_003 + number * 8_191 + sample) % 2**64
