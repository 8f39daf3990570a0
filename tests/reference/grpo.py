"""The language-model objectives again, slowly: one token at a time, in plain Python floats."""

import math
from collections.abc import Sequence


def token_value(
    objective: str,
    *,
    logprob: float,
    proximal: float,
    behavior: float,
    sequence_mean_log_ratio: float,
    advantage: float,
    clip_low: float,
    clip_high: float,
    importance_cap: float,
) -> float:
    """What one token adds to the objective that is maximised."""
    if objective == "none":
        return logprob * advantage

    def clipped(ratio: float) -> float:
        inside = min(max(ratio, 1.0 - clip_low), 1.0 + clip_high)
        return min(ratio * advantage, inside * advantage)

    if objective == "grpo":
        return clipped(math.exp(logprob - behavior))
    if objective == "gspo":
        return clipped(math.exp(sequence_mean_log_ratio))
    weight = min(math.exp(proximal - behavior), importance_cap if objective == "tis" else 50.0)
    return weight * clipped(math.exp(logprob - proximal))


def loss(
    objective: str,
    *,
    logprobs: Sequence[Sequence[float]],
    proximal: Sequence[Sequence[float]],
    behavior: Sequence[Sequence[float]],
    reference: Sequence[Sequence[float]],
    advantages: Sequence[float],
    clip_low: float,
    clip_high: float,
    importance_cap: float,
    kl_weight: float,
    token_mean: bool,
) -> float:
    """The loss of ragged completions, without padding."""
    per_row: list[list[float]] = []
    for row, row_logprobs in enumerate(logprobs):
        log_ratios = [new - old for new, old in zip(row_logprobs, behavior[row], strict=True)]
        mean_log_ratio = sum(log_ratios) / len(log_ratios)
        values: list[float] = []
        for position, logprob in enumerate(row_logprobs):
            value = token_value(
                objective,
                logprob=logprob,
                proximal=proximal[row][position],
                behavior=behavior[row][position],
                sequence_mean_log_ratio=mean_log_ratio,
                advantage=advantages[row],
                clip_low=clip_low,
                clip_high=clip_high,
                importance_cap=importance_cap,
            )
            log_ratio = reference[row][position] - logprob
            values.append(-value + kl_weight * (math.exp(log_ratio) - 1.0 - log_ratio))
        per_row.append(values)
    if token_mean:
        return sum(map(sum, per_row)) / sum(map(len, per_row))
    return sum(sum(values) / len(values) for values in per_row) / len(per_row)
