"""Activations of dense layers, under numpy and torch."""

from typing import Any, Literal

from tidegate.models.array_functions import ArrayModule

Activation = Literal["tanh", "relu"]


def activated(values: Any, activation: Activation, xp: ArrayModule) -> Any:
    """The values after a layer's activation."""
    return xp.tanh(values) if activation == "tanh" else xp.clip(values, 0.0, None)
