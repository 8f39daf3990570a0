"""V-trace and GAE again, slowly: one environment at a time, the sums written out as in the papers."""

from collections.abc import Sequence

Row = Sequence[float]


def vtrace(
    *,
    ratios: Row,
    rewards: Row,
    discounts: Row,
    continues: Sequence[bool],
    values: Row,
    clip_rho: float,
    clip_c: float,
    lambda_: float,
) -> tuple[list[float], list[float], list[float]]:
    """Value targets, advantages and weights of one environment's steps; ``values`` has one more entry."""
    num_steps = len(rewards)

    def target(start: int) -> float:
        """v_start = V_start + Σ_t (Π_{start ≤ i < t} γ_i c_i) ρ_t (r_t + γ_t V_{t+1} − V_t), until the episode ends."""
        total = values[start]
        passed_on = 1.0
        for t in range(start, num_steps):
            error = rewards[t] + discounts[t] * values[t + 1] - values[t]
            total += passed_on * min(clip_rho, ratios[t]) * error
            if not continues[t]:
                break
            passed_on *= discounts[t] * lambda_ * min(clip_c, ratios[t])
        return total

    targets = [target(t) for t in range(num_steps)]
    advantages: list[float] = []
    for t in range(num_steps):
        bootstrap = values[t + 1]
        if continues[t] and t + 1 < num_steps:
            bootstrap = lambda_ * targets[t + 1] + (1.0 - lambda_) * values[t + 1]
        advantages.append(rewards[t] + discounts[t] * bootstrap - values[t])
    return targets, advantages, [min(clip_rho, ratio) for ratio in ratios]


def gae(
    *, rewards: Row, discounts: Row, continues: Sequence[bool], values: Row, lambda_: float
) -> list[float]:
    """A_t = Σ_k (γλ)^k δ_{t+k}, until the episode ends."""
    advantages: list[float] = []
    for start in range(len(rewards)):
        total, factor = 0.0, 1.0
        for t in range(start, len(rewards)):
            total += factor * (rewards[t] + discounts[t] * values[t + 1] - values[t])
            if not continues[t]:
                break
            factor *= discounts[t] * lambda_
        advantages.append(total)
    return advantages


def group_advantages(
    rewards: Row, groups: Sequence[int], *, normalise_by_std: bool, floor: float
) -> list[float]:
    """Each reward against the mean of its group, and in its standard deviations."""
    advantages: list[float] = []
    for reward, group in zip(rewards, groups, strict=True):
        peers = [other for other, index in zip(rewards, groups, strict=True) if index == group]
        mean = sum(peers) / len(peers)
        scale = 1.0
        if normalise_by_std:
            squares = sum((peer - mean) ** 2 for peer in peers)
            scale = (squares / max(1, len(peers) - 1)) ** 0.5 + floor
        advantages.append((reward - mean) / scale)
    return advantages
