"""Off-policyness of data: probability ratios and their metrics."""

import torch
from torch import Tensor

from tidegate.algorithms.shapes import check_floating, check_shapes
from tidegate.core.lag_classes import LAG_CLASS_NAMES, LAG_CLASSES, mismatch_name

# exp of more overflows when Adam squares it; a step this much likelier is no sample of the behaviour policy.
LOG_RATIO_MAX = 20.0
# Actor (numpy) and learner (torch) agree on a logprob to about 1e-6; a ratio this close to a limit does not exceed it.
RATIO_TOLERANCE = 1e-3


def probability_ratios(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """π/π_old of each action or token; any shape, the same for both.

    Raises:
        ValueError: the shapes differ.
    """
    check_shapes(tuple(logprobs.shape), old_logprobs=old_logprobs)
    return (logprobs - old_logprobs).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX).exp()


def effective_sample_size(weights_N: Tensor) -> float:
    """Share of N weighted samples that equal weights would need: (Σw)² / (N Σw²), in (0, 1]; 1 for none (Kong 1992).

    Raises:
        ValueError: the weights are not one row of a floating type.
    """
    check_shapes((weights_N.numel(),), weights_N=weights_N)
    check_floating(weights_N=weights_N)
    if not len(weights_N):
        return 1.0
    # Divide by the largest first: squares of ratios near their bound overflow float32.
    scaled_N = weights_N / weights_N.max()
    return float(scaled_N.sum().square() / (len(scaled_N) * scaled_N.square().sum()))


def truncated_fraction(ratios_N: Tensor, *, limit: float) -> float:
    """Share of N ratios above ``limit``, whose weight is truncated; 0 for none.

    Raises:
        ValueError: the ratios are not one row.
    """
    check_shapes((ratios_N.numel(),), ratios_N=ratios_N)
    if not len(ratios_N):
        return 0.0
    return float((ratios_N > limit * (1.0 + RATIO_TOLERANCE)).float().mean())


def k3_divergence(log_ratios: Tensor) -> Tensor:
    """KL(p‖q) in nats, estimated at each sample of p from log r = log q − log p: r − 1 − log r, never negative.

    Source: Schulman 2020, "Approximating KL divergence", estimator k3.
    """
    clamped = log_ratios.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    return torch.expm1(clamped) - clamped


def mismatch_by_lag(log_ratios_N: Tensor, gaps_N: Tensor) -> dict[str, float]:
    """KL(μ‖π) in nats (k3) of the samples that are ``gaps_N`` versions old, by class of lag.

    At lag 0 μ and π are the same parameters: what is measured there is the numerics of two engines. What older samples
    have beyond it is staleness. Names are ``mismatch_kl_lag_0``, ``..._1``, ``..._2-3`` to ``..._16+``; a class without
    samples has none.

    Raises:
        ValueError: the shapes differ, or are not one row.
    """
    check_shapes((log_ratios_N.numel(),), log_ratios_N=log_ratios_N, gaps_N=gaps_N)
    limits_C = torch.tensor(LAG_CLASSES[1:], dtype=gaps_N.dtype, device=gaps_N.device)
    class_N = torch.bucketize(gaps_N, limits_C, right=True)
    divergence_N = k3_divergence(log_ratios_N)
    num_classes = len(LAG_CLASSES)
    counts = torch.bincount(class_N, minlength=num_classes).cpu().numpy()
    sums = torch.zeros(num_classes, dtype=divergence_N.dtype, device=divergence_N.device)
    totals = sums.index_add_(0, class_N, divergence_N).cpu().numpy()
    return {
        mismatch_name(name): float(total / count)
        for name, total, count in zip(LAG_CLASS_NAMES, totals, counts, strict=True)
        if count
    }
