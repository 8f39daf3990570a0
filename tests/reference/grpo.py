"""The language-model objectives again, slowly: one token at a time, in plain Python floats.

A completion is the list of its chosen tokens; what stood between them is not even there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.algorithms.grpo_settings import GrpoSettings


@dataclass
class Completion:
    """Logprobs of its chosen tokens under every policy. ``frozen``: θ's, where an objective stops the gradient."""

    logprobs: list[float]
    frozen: list[float]
    proximal: list[float]
    behavior: list[float]
    reference: list[float]
    gaps: list[float]
    advantage: float
    reward: float
    group: int
    weight: float = 1.0
    advantages: list[float] = field(default_factory=list[float])

    def token_advantages(self) -> list[float]:
        return self.advantages or [self.advantage] * len(self.logprobs)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def clamp(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def clipped(ratio: float, advantage: float, settings: GrpoSettings) -> float:
    inside = clamp(ratio, 1.0 - settings.clip_low, 1.0 + settings.clip_high)
    return min(ratio * advantage, inside * advantage)


def proximal_logprob(completion: Completion, t: int, settings: GrpoSettings) -> float:
    if settings.proximal == "forward":
        return completion.proximal[t]
    behavior, gap = completion.behavior[t], completion.gaps[t]
    return behavior + gap / (gap + 1.0) * (completion.frozen[t] - behavior)


def token_value(completion: Completion, t: int, settings: GrpoSettings) -> float:
    """What one token adds to the objective that is maximised."""
    name = settings.objective
    logprob, frozen, behavior = completion.logprobs[t], completion.frozen[t], completion.behavior[t]
    advantage = completion.token_advantages()[t]
    num_tokens = len(completion.logprobs)
    if name == "none":
        return advantage * logprob
    if name in ("grpo", "ppo"):
        return clipped(math.exp(logprob - behavior), advantage, settings)
    if name == "gspo":
        total = sum(completion.logprobs[i] - completion.behavior[i] for i in range(num_tokens))
        return clipped(math.exp(total / num_tokens), advantage, settings)
    if name == "opsm":
        drift = sum(completion.behavior[i] - completion.frozen[i] for i in range(num_tokens)) / num_tokens
        if completion.advantage < 0.0 and drift > settings.opsm_kl_max:
            return 0.0
        return clipped(math.exp(logprob - behavior), advantage, settings)
    if name == "cispo":
        return (
            clamp(math.exp(frozen - behavior), settings.cispo_low, settings.cispo_high) * advantage * logprob
        )
    if name == "topr":
        weight = 1.0
        if completion.advantage < 0.0:
            whole = sum(completion.frozen[i] - completion.behavior[i] for i in range(num_tokens))
            weight = min(1.0, math.exp(whole))
        return weight * advantage * logprob
    if name == "dppo":
        change = math.exp(frozen) - math.exp(behavior)
        gone_up = advantage > 0.0 and change > settings.dppo_delta
        gone_down = advantage < 0.0 and change < -settings.dppo_delta
        pushed = 0.0 if gone_up or gone_down else advantage * math.exp(logprob - behavior)
        return pushed - settings.dppo_tau * (logprob - behavior) ** 2
    proximal = proximal_logprob(completion, t, settings)
    around_proximal = clipped(math.exp(logprob - proximal), advantage, settings)
    weight = math.exp(proximal - behavior)
    if name == "tis":
        return min(weight, settings.importance_cap) * around_proximal
    if name == "decoupled_ppo":
        return min(weight, 50.0) * around_proximal
    if name == "icepop":
        return weight * around_proximal if settings.icepop_low <= weight <= settings.icepop_high else 0.0
    assert name == "sequence_mask", f"write the slow twin of {name} here"
    log_weights = [
        proximal_logprob(completion, i, settings) - completion.behavior[i] for i in range(num_tokens)
    ]
    kept = settings.sequence_low <= math.exp(mean(log_weights)) <= settings.sequence_high
    return around_proximal if kept else 0.0


def balance_loss(completions: Sequence[Completion], settings: GrpoSettings) -> float:
    """Trajectory balance: the mean squared distance from π_ref exp(R/β), up to each prompt's constant."""
    squares: list[float] = []
    for completion in completions:
        constants: list[float] = []
        for other in completions:
            if other.group == completion.group:
                constants.append(other.reward / settings.tba_beta + sum(other.reference) - sum(other.frozen))
        log_z = mean(constants)
        residual = log_z + sum(completion.logprobs) - sum(completion.reference)
        squares.append(completion.weight * (residual - completion.reward / settings.tba_beta) ** 2)
    return mean(squares)


def averaged(per_row: Sequence[Sequence[float]], settings: GrpoSettings) -> float:
    """Over completions × a constant, over all tokens, or over completions of their means."""
    if settings.length_divisor_tokens:
        return sum(map(sum, per_row)) / (len(per_row) * settings.length_divisor_tokens)
    if settings.averages_tokens:
        return sum(map(sum, per_row)) / sum(map(len, per_row))
    return mean([mean(values) for values in per_row])


def loss(completions: Sequence[Completion], settings: GrpoSettings) -> float:
    """The loss without the value loss."""
    divergences: list[list[float]] = []
    for completion in completions:
        log_ratios = [old - new for old, new in zip(completion.reference, completion.logprobs, strict=True)]
        divergences.append([math.exp(log_ratio) - 1.0 - log_ratio for log_ratio in log_ratios])
    in_loss = settings.kl_weight if settings.kl_in == "loss" else 0.0
    kl = in_loss * averaged(divergences, settings)
    if settings.objective == "tba":
        return balance_loss(completions, settings) + kl
    values: list[list[float]] = []
    for completion in completions:
        tokens = range(len(completion.logprobs))
        values.append([completion.weight * token_value(completion, t, settings) for t in tokens])
    return kl - averaged(values, settings)


def generalized_advantages(
    rewards: Sequence[float], values: Sequence[float], *, discount: float, lambda_: float
) -> list[float]:
    """GAE over chosen tokens, each as the whole sum of what is still to come."""
    num_tokens = len(rewards)
    errors: list[float] = []
    for t in range(num_tokens):
        next_value = values[t + 1] if t + 1 < num_tokens else 0.0
        errors.append(rewards[t] + discount * next_value - values[t])
    return [
        sum((discount * lambda_) ** (later - t) * errors[later] for later in range(t, num_tokens))
        for t in range(num_tokens)
    ]


def value_loss(
    values: Sequence[float], old_values: Sequence[float], returns: Sequence[float], *, clip: float
) -> float:
    """Half the mean of the larger squared error, of the value and of the value held near the old one."""
    squares: list[float] = []
    for value, old, target in zip(values, old_values, returns, strict=True):
        held = clamp(value, old - clip, old + clip) if clip > 0.0 else value
        squares.append(max((value - target) ** 2, (held - target) ** 2))
    return 0.5 * mean(squares)
