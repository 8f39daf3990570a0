"""Dense layers with an activation between them, under numpy and torch.

Shapes: ... rows of any leading dimensions, I inputs, U units of the last layer.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tidegate.core.errors import ConfigError
from tidegate.models.activations import Activation, activated
from tidegate.models.array_functions import ArrayModule

# Weight (before, after) and bias (after,) of a layer.
Layer: TypeAlias = tuple[Any, Any]


def dense_layers(
    inputs: Any, layers: Sequence[Layer], activation: Activation, xp: ArrayModule, *, activates_last: bool
) -> Any:
    """Units (..., U) of inputs (..., I); ``activates_last``: whether the last layer has the activation as well."""
    # Autocast chooses the precision of each operation, so it has to see each.
    if xp is not np and not _is_autocast(inputs.device.type, xp):
        from tidegate.models.torch_dense import torch_dense_layers  # torch: actors never load it

        return torch_dense_layers(inputs, layers, activation, activates_last=activates_last)
    last = len(layers) - 1
    for position, (weight, bias) in enumerate(layers):
        inputs = inputs @ weight + bias
        if activates_last or position < last:
            inputs = activated(inputs, activation, xp)
    return inputs


def _is_autocast(device_type: str, torch: ArrayModule) -> bool:
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def check_hidden(hidden: tuple[int, ...]) -> None:
    """Check ``policy.hidden``.

    Raises:
        ConfigError: a layer has no units.
    """
    if min(hidden, default=1) < 1:
        raise ConfigError(f"Each layer of policy.hidden needs units, not {hidden}")
