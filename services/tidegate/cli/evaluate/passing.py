"""Figures of an evaluation, from the rewards of each problem's answers."""

import math
from collections.abc import Sequence

import msgspec


class Figures(msgspec.Struct, frozen=True):
    """Of one set of problems.

    ``solved_share``: of all answers; ``mean_reward``: of the same. ``pass_at``: the probability that at least one of k
    answers solves a problem, by k. ``failures``: why answers could not be scored, one text each; their reward is 0.
    """

    num_problems: int
    num_samples: int
    solved_share: float
    mean_reward: float
    pass_at: dict[int, float]
    failures: list[str] = []


def figures_of(
    rewards: Sequence[Sequence[float]], *, solved_at: float, ks: Sequence[int], failures: Sequence[str] = ()
) -> Figures:
    """The figures of ``rewards``, one list for each problem, all equally long; at least one answer each.

    ``solved_at``: the reward of a solved problem. A ``k`` above the number of answers is left out.
    """
    num_samples = len(rewards[0])
    solved = [sum(reward >= solved_at for reward in of_one) for of_one in rewards]
    answers = len(rewards) * num_samples
    return Figures(
        num_problems=len(rewards),
        num_samples=num_samples,
        solved_share=sum(solved) / answers,
        mean_reward=sum(map(sum, rewards)) / answers,
        pass_at={
            k: sum(pass_at(k, num_samples=num_samples, num_solved=each) for each in solved) / len(rewards)
            for k in sorted(set(ks))
            if k <= num_samples
        },
        failures=list(failures),
    )


def pass_at(k: int, *, num_samples: int, num_solved: int) -> float:
    """1 - C(n - c, k) / C(n, k): without bias from n answers of which c solve (Chen 2021, eq. 1)."""
    return 1.0 - math.comb(num_samples - num_solved, k) / math.comb(num_samples, k)
