"""The actor-critic loss again, slowly: one step at a time, in plain Python floats, straight from a segment's arrays."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.reference import vtrace as slow


@dataclass(frozen=True)
class Policy:
    """What the networks say of a segment: ``logits[t][n][a]``, and ``values[t][n]`` with one more t."""

    logits: Sequence[Sequence[Sequence[float]]]
    values: Sequence[Sequence[float]]


def log_softmax(logits: Sequence[float]) -> list[float]:
    """Logprobs of all actions."""
    largest = max(logits)
    total = math.log(sum(math.exp(logit - largest) for logit in logits))
    return [logit - largest - total for logit in logits]


def loss(
    objective: str,
    segment: Mapping[str, Any],
    *,
    proximal: Policy,
    current: Policy,
    discount: float,
    lambda_: float,
    clip_rho: float,
    clip_c: float,
    clip: float,
    entropy_weight: float,
    value_weight: float,
    value_scale: float,
) -> float:
    """The loss of a whole segment as one minibatch; advantages are not normalised."""
    num_steps, num_envs = segment["rewards"].shape
    terms: list[float] = []
    for n in range(num_envs):
        actions = [int(segment["actions"][t, n]) for t in range(num_steps)]
        behavior = [float(segment["behavior_logprobs"][t, n]) for t in range(num_steps)]
        anchors = [log_softmax(proximal.logits[t][n])[actions[t]] for t in range(num_steps)]
        ratios = [math.exp(new - old) for new, old in zip(anchors, behavior, strict=True)]
        if objective in {"none", "ppo", "a2c"}:
            ratios = [1.0] * num_steps
        if objective in {"ppo", "a2c"}:
            anchors = behavior
        terminated = [bool(segment["terminated"][t, n]) for t in range(num_steps)]
        truncated = [bool(segment["truncated"][t, n]) for t in range(num_steps)]
        targets, advantages, weights = slow.vtrace(
            ratios=ratios,
            rewards=[float(segment["rewards"][t, n]) for t in range(num_steps)],
            discounts=[0.0 if ended else discount for ended in terminated],
            continues=[not (terminated[t] or truncated[t]) for t in range(num_steps)],
            values=[value_scale * proximal.values[t][n] for t in range(num_steps + 1)],
            clip_rho=math.inf if objective in {"ppo", "a2c"} else clip_rho,
            clip_c=math.inf if objective in {"ppo", "a2c"} else clip_c,
            lambda_=lambda_,
        )
        for t in range(num_steps):
            if not segment["valid"][t, n]:
                continue
            logprobs = log_softmax(current.logits[t][n])
            ratio = math.exp(logprobs[actions[t]] - anchors[t])
            inside = min(max(ratio, 1.0 - clip), 1.0 + clip)
            gain = weights[t] * min(ratio * advantages[t], inside * advantages[t])
            if objective == "a2c":
                gain = logprobs[actions[t]] * advantages[t]
            error = abs(current.values[t][n] - targets[t] / value_scale)
            huber = 0.5 * error**2 if error < 1.0 else error - 0.5
            entropy = -sum(math.exp(logprob) * logprob for logprob in logprobs)
            terms.append(-gain + value_weight * huber - entropy_weight * entropy)
    return sum(terms) / len(terms)
