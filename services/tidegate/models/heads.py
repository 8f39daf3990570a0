"""A policy head and a value head, one linear layer each, on features that both share."""

from collections.abc import Mapping

import numpy as np

from tidegate.core.records import Array
from tidegate.models.distributions import ActionDistribution
from tidegate.models.layers import POLICY_GAIN, SHARED_OUTPUTS, VALUE_GAIN, orthogonal

GAINS = {"policy": POLICY_GAIN, "value": VALUE_GAIN}


def head_shapes(num_features: int, actions: ActionDistribution) -> dict[str, tuple[int, ...]]:
    """Shapes of the heads' parameters; weights are (inputs, outputs)."""
    num_shared = actions.num_shared_outputs
    shapes: dict[str, tuple[int, ...]] = {}
    for head, num_outputs in (("policy", actions.num_outputs - num_shared), ("value", 1)):
        shapes[f"{head}.weight"] = (num_features, num_outputs)
        shapes[f"{head}.bias"] = (num_outputs,)
    if num_shared:
        shapes[SHARED_OUTPUTS] = (num_shared,)
    return shapes


def with_heads(
    params: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator
) -> dict[str, Array]:
    """All parameters of ``shapes``: those of ``params``, orthogonal weights of the heads, and zeros for the rest."""
    drawn = dict(params)
    for head, gain in GAINS.items():
        num_before, num_after = shapes[f"{head}.weight"]
        drawn[f"{head}.weight"] = orthogonal((num_before, num_after), rng, gain=gain)
    return {
        name: drawn[name] if name in drawn else np.zeros(shape, np.float32) for name, shape in shapes.items()
    }
