"""Q-learning again, slowly: one transition at a time, sums and loops written out as in the papers."""

import math
from collections.abc import Sequence

EPSILON = 1e-3


def rescaled(value: float) -> float:
    """h(x) (Pohlen 2018)."""
    return math.copysign(math.sqrt(abs(value) + 1.0) - 1.0, value) + EPSILON * value


def unscaled(value: float) -> float:
    """h⁻¹ by bisection: h grows strictly."""
    low, high = -1e9, 1e9
    for _ in range(200):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rescaled(middle) < value else (low, middle)
    return (low + high) / 2.0


def target(
    *,
    rewards: Sequence[float],
    terminated: Sequence[bool],
    truncated: Sequence[bool],
    values_after: Sequence[float],
    start: int,
    n_steps: int,
    discount: float,
    rescale: bool,
) -> float:
    """The n-step target of step ``start``; ``values_after``: the network's, of the observation after each step."""
    total = 0.0
    for k in range(n_steps):
        t = start + k
        total += discount**k * rewards[t]
        if terminated[t]:
            break
        if truncated[t] or k == n_steps - 1 or t == len(rewards) - 1:
            value = unscaled(values_after[t]) if rescale else values_after[t]
            total += discount ** (k + 1) * value
            break
    return rescaled(total) if rescale else total


def double_q_value(online: Sequence[float], target_network: Sequence[float]) -> float:
    """The target network's value of the online network's best action."""
    return target_network[max(range(len(online)), key=lambda action: online[action])]


def dueling(advantages: Sequence[float], value: float) -> list[float]:
    """Q of every action (Wang 2016, eq. 9)."""
    return [value + advantage - sum(advantages) / len(advantages) for advantage in advantages]


def loss(
    *, values: Sequence[float], targets: Sequence[float], weights: Sequence[float], huber_width: float
) -> float:
    """The mean weighted Huber loss."""
    total = 0.0
    for value, wanted, weight in zip(values, targets, weights, strict=True):
        error = abs(wanted - value)
        total += weight * (
            0.5 * error**2 if error <= huber_width else huber_width * (error - 0.5 * huber_width)
        )
    return total / len(values)


def sequence_priority(errors: Sequence[float], *, burn_in: int, length: int, max_share: float) -> float:
    """The mixture of the largest and the mean error after the burn-in (Kapturowski 2019)."""
    sizes = [abs(errors[step]) for step in range(burn_in, length)]
    if not sizes:
        return 0.0
    return max_share * max(sizes) + (1.0 - max_share) * sum(sizes) / len(sizes)
