"""Soft actor-critic again, slowly: one transition at a time, in plain Python floats."""

import math
from collections.abc import Sequence


def soft_value(values: Sequence[float], logprob: float, *, temperature: float) -> float:
    """Of a state: ``values``: of each critic, for one action drawn from the policy."""
    smallest = values[0]
    for value in values[1:]:
        smallest = min(smallest, value)
    return smallest - temperature * logprob


def target(
    rewards: Sequence[float],
    *,
    length: int,
    terminated: bool,
    next_values: Sequence[float],
    next_logprob: float,
    temperature: float,
    discount: float,
) -> float:
    """What the critics learn for a transition."""
    total = 0.0
    for step in range(length):
        total += discount**step * rewards[step]
    if not terminated:
        total += discount**length * soft_value(next_values, next_logprob, temperature=temperature)
    return total


def critic_loss(
    values: Sequence[Sequence[float]], targets: Sequence[float], *, weights: Sequence[float]
) -> float:
    """``values[c][b]``: of critic c for transition b."""
    total = 0.0
    for row in values:
        for value, wanted, weight in zip(row, targets, weights, strict=True):
            total += weight * 0.5 * (value - wanted) ** 2
    return total / len(targets)


def policy_loss(logprobs: Sequence[float], values: Sequence[Sequence[float]], *, temperature: float) -> float:
    """The smaller the loss, the larger the mean of values and entropy."""
    gains = [
        soft_value([row[b] for row in values], logprob, temperature=temperature)
        for b, logprob in enumerate(logprobs)
    ]
    return -sum(gains) / len(gains)


def temperature_loss(log_temperature: float, logprobs: Sequence[float], *, target_entropy: float) -> float:
    """Its derivative by the temperature is how far the entropy is above the target."""
    return sum(math.exp(log_temperature) * (-logprob - target_entropy) for logprob in logprobs) / len(
        logprobs
    )
