"""Targets of Q-learning, written once for numpy, by which actors compute first priorities, and torch, for the learner.

A Q-network may give values in a compressed scale, h(Q) (``value_rescaling``); "in the network's scale" marks them.

Shapes: n steps of a transition, T steps, S = T + 1 observations; "..." is any number of further dimensions. ``xp``: the
module numpy or torch that the arrays belong to.
"""

from typing import Any

# ε of h: what is left of the slope for large values, so that h can be inverted.
RESCALING_EPSILON = 1e-3


def rescaled(values: Any, xp: Any) -> Any:
    """h(x) = sign(x)(√(|x| + 1) − 1) + εx: returns of any size become values that a network learns well.

    Source: Pohlen 2018, proposition A.2; Kapturowski 2019, section 2.3.
    """
    return xp.sign(values) * (xp.sqrt(xp.abs(values) + 1.0) - 1.0) + RESCALING_EPSILON * values


def unscaled(values: Any, xp: Any) -> Any:
    """The inverse of ``rescaled``.

    Source: as there; the root is written as 2a/(√(1 + 4εa) + 1), which loses nothing in float32.
    """
    shifted = xp.abs(values) + 1.0 + RESCALING_EPSILON
    root = 2.0 * shifted / (xp.sqrt(1.0 + 4.0 * RESCALING_EPSILON * shifted) + 1.0)
    return xp.sign(values) * (root * root - 1.0)


def in_network_scale(values: Any, xp: Any, *, rescale: bool) -> Any:
    """Returns as the network gives them: h of them if ``rescale``."""
    return rescaled(values, xp) if rescale else values


def in_return_scale(values: Any, xp: Any, *, rescale: bool) -> Any:
    """What the network gives as returns: h⁻¹ of it if ``rescale``."""
    return unscaled(values, xp) if rescale else values


def transition_targets(
    rewards: Any,
    lengths: Any,
    terminated: Any,
    bootstrap: Any,
    xp: Any,
    *,
    discount: float,
    rescale: bool = False,
) -> Any:
    """Σ_{k<m} γ^k r_k + γ^m V, where m is the transition's length; in the network's scale (...).

    ``rewards``: (..., n), zeros past the length. ``lengths``: (...), 1 to n. ``terminated``: (...) bool, whether the
    last step terminated the episode: V is 0 then, but not where a time limit truncated it. ``bootstrap``: (...), the
    value of the observation after the last step, in the network's scale. ``discount``: γ per step.

    Source: Sutton 1988; Horgan 2018, section 3.
    """
    returns = rewards[..., -1]
    for step in range(rewards.shape[-1] - 2, -1, -1):
        returns = rewards[..., step] + discount * returns
    values = in_return_scale(bootstrap, xp, rescale=rescale)
    values = xp.where(terminated, 0.0, discount**lengths * values)
    return in_network_scale(returns + values, xp, rescale=rescale)


def sequence_targets(
    rewards: Any,
    terminated: Any,
    ended: Any,
    bootstrap: Any,
    xp: Any,
    *,
    n_steps: int,
    discount: float,
    rescale: bool = False,
) -> Any:
    """The targets of every step of a sequence, in the network's scale (T, ...).

    A window of ``n_steps`` stops at an end, where a truncated episode bootstraps from the observation after it, and at
    the sequence's own end, with fewer steps.

    ``rewards``, ``terminated`` (bool), ``ended`` (bool; terminated or truncated): (T, ...). ``bootstrap``: (S, ...),
    the value of each observation in the network's scale. ``n_steps``: at least 1.

    Source: as ``transition_targets``.
    """
    values = in_return_scale(bootstrap, xp, rescale=rescale)
    following = values
    for _ in range(n_steps):
        after = xp.where(ended, values[1:], following[1:])
        targets = rewards + xp.where(terminated, 0.0, discount * after)
        following = xp.concatenate([targets, values[-1:]])
    return in_network_scale(following[:-1], xp, rescale=rescale)
