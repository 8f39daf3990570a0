"""Named observations to one vector of network inputs: indices one-hot, images between 0 and 1, all parts side by side.

Shapes: I inputs of the network, C components of a part.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tidegate.core.spaces import (
    DiscreteSpace,
    Leaf,
    MultiBinarySpace,
    MultiDiscreteSpace,
    num_inputs,
    recorded_dtype,
    recorded_shape,
)
from tidegate.models.array_functions import ArrayModule, as_float32, constant

UINT8_MAX = 255.0


def recorded_leaf(leaf: Leaf, values: Any) -> Any:
    """Observations (N, ...) of one part, as an environment gives them, to (N, *leaf shape) as segments record them."""
    if isinstance(leaf, DiscreteSpace):
        values = values - leaf.start
    elif isinstance(leaf, MultiDiscreteSpace):
        values = values - np.array(leaf.starts).reshape(leaf.shape)
    return values.astype(recorded_dtype(leaf), copy=False).reshape(len(values), *recorded_shape(leaf))


class FlatInputs:
    """Encodes the observations of ``leaves``. ``num_inputs``: I. ``is_continuous_I``: no one-hot vector and no flag."""

    def __init__(self, leaves: Mapping[str, Leaf]) -> None:
        self.num_inputs = sum(num_inputs(leaf) for leaf in leaves.values())
        self.is_continuous_I = np.concatenate(
            [
                np.full(
                    num_inputs(leaf),
                    not isinstance(leaf, DiscreteSpace | MultiDiscreteSpace | MultiBinarySpace),
                )
                for leaf in leaves.values()
            ]
        )
        self._encoders = {name: _encoder(leaf) for name, leaf in leaves.items()}
        self._only = next(iter(self._encoders.items())) if len(self._encoders) == 1 else None

    def __call__(self, observations: Mapping[str, Any], xp: ArrayModule) -> Any:
        """Inputs (..., I), float32, of observations (..., *leaf shape)."""
        if self._only is not None:
            name, encode = self._only
            return encode(observations[name], xp)
        parts = [encode(observations[name], xp) for name, encode in self._encoders.items()]
        return xp.concatenate(parts, axis=-1)


def _encoder(leaf: Leaf) -> Callable[[Any, ArrayModule], Any]:
    if isinstance(leaf, DiscreteSpace):
        return _one_hot((), (leaf.num_values,))
    if isinstance(leaf, MultiDiscreteSpace):
        return _one_hot(leaf.shape, leaf.nums_values)
    shape = leaf.shape
    if isinstance(leaf, MultiBinarySpace):
        return lambda values, xp: as_float32(_flat(values, shape), xp)
    if leaf.dtype == "uint8":
        return lambda values, xp: as_float32(_flat(values, shape), xp) / UINT8_MAX
    return lambda values, _xp: values if len(shape) == 1 else _flat(values, shape)


def _one_hot(shape: tuple[int, ...], nums_values: tuple[int, ...]) -> Callable[[Any, ArrayModule], Any]:
    """One-hot vectors of all components, side by side."""
    component_of_I = np.repeat(np.arange(len(nums_values)), nums_values)
    value_of_I = np.concatenate([np.arange(count, dtype=np.int32) for count in nums_values])

    def encode(values: Any, xp: ArrayModule) -> Any:
        flat = _flat(values, shape)
        return as_float32(flat[..., component_of_I] == constant(value_of_I, values, xp), xp)

    return encode


def _flat(values: Any, shape: tuple[int, ...]) -> Any:
    """Values (..., *shape) as (..., C)."""
    leading = values.shape[: len(values.shape) - len(shape)]
    return values.reshape(*leading, -1) if 0 not in leading else values.reshape(*leading, int(np.prod(shape)))
