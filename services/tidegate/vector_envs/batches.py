"""Observations of several copies in one batch, as Gymnasium lays them out: arrays, or Dicts and Tuples of arrays.

Shapes: N copies; a leaf is a space that is neither Dict nor Tuple.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tidegate.core.records import Array
from tidegate.core.spaces import OBSERVATIONS


class NotFinite(msgspec.Struct, frozen=True):
    """The first number of one copy that is not finite: ``component`` is such as ``observations.position[2] is nan``."""

    copy: int
    component: str


class _Leaf(msgspec.Struct, frozen=True):
    """Where a leaf is in an observation, the name it is recorded under, and the shape and dtype of its part.

    ``shape``: None for parts that are no numbers (a Text that a wrapper will leave out), which are kept as objects.
    """

    path: tuple[Any, ...]
    name: str
    shape: tuple[int, ...] | None
    dtype: Any

    def of(self, observation: Any) -> Any:
        """The leaf's part of an observation or of a batch."""
        for key in self.path:
            observation = observation[key]
        return observation


class ObservationBatches:
    """Makes batches for observations of one space."""

    def __init__(self, space: Any, *, num_envs: int) -> None:
        self._space = space
        self._num_envs = num_envs
        self._leaves = tuple(_leaves(space, ()))
        self._numeric = [leaf for leaf in self._leaves if leaf.shape is not None]

    def zeros(self) -> "ObservationBatch":
        """A batch of zeros."""
        return self._batch(np.zeros)

    def empty(self) -> "ObservationBatch":
        """A batch whose rows are to be written."""
        return self._batch(np.empty)

    def adopt(self, observations: Any) -> "ObservationBatch":
        """The batch that a vector form returned."""
        return ObservationBatch(observations, self._leaves)

    def are_finite(self, observations: Any, rewards_N: NDArray[Any]) -> bool:
        """Whether a batch and its rewards contain neither NaN nor infinities; may doubt it of huge numbers.

        A microsecond: the sum of squares of numbers is finite only if each of them is.
        """
        total = rewards_N.dot(rewards_N)
        for leaf in self._numeric:
            array = leaf.of(observations) if leaf.path else observations
            if array.dtype.kind == "f":
                flat = array.ravel("K")  # any order, without a copy
                total = total + flat.dot(flat)
        return math.isfinite(total)

    def copied(self, batch: "ObservationBatch") -> "ObservationBatch":
        """A copy with zeros for numbers that are not finite; a vector form may write into its batch again."""
        arrays = [
            array if leaf.shape is None else np.nan_to_num(array, nan=0.0, posinf=0.0, neginf=0.0)
            for leaf, array in batch.parts
        ]
        return ObservationBatch(_structured(self._space, iter(arrays)), self._leaves)

    def _batch(self, allocate: Callable[..., Array]) -> "ObservationBatch":
        arrays = [allocate((self._num_envs, *(leaf.shape or ())), leaf.dtype) for leaf in self._leaves]
        return ObservationBatch(_structured(self._space, iter(arrays)), self._leaves)


class ObservationBatch:
    """One batch: ``observations`` as an environment returns them, ``parts`` by leaf. Part of an actor's hot loop."""

    __slots__ = ("observations", "parts")

    def __init__(self, observations: Any, leaves: tuple[_Leaf, ...]) -> None:
        self.observations = observations
        self.parts: list[tuple[_Leaf, Array]] = [
            (leaf, leaf.of(observations) if leaf.path else observations) for leaf in leaves
        ]

    def write(self, copy: int, observation: Any) -> None:
        """Set the row of one copy.

        Raises:
            ValueError: a part has another shape than its space; assignment would repeat it silently.
        """
        for leaf, array in self.parts:
            value = leaf.of(observation) if leaf.path else observation
            array[copy] = value
            shape: tuple[int, ...] = value.shape if hasattr(value, "shape") else np.shape(value)
            if shape != leaf.shape and leaf.shape is not None:
                raise ValueError(f"{leaf.name} has shape {shape}, and its space {leaf.shape}")

    def repeat(self, before: "ObservationBatch", copy: int) -> None:
        """Set the row of one copy to that of the batch before."""
        for (_, array), (_, array_before) in zip(self.parts, before.parts, strict=True):
            array[copy] = array_before[copy]

    def not_finite(self, rewards_N: NDArray[Any]) -> list[NotFinite]:
        """For each copy with a number that is not finite, the first one; the reward counts as a component."""
        found: dict[int, str] = {}
        for leaf, array in self.parts:
            if leaf.shape is not None and array.dtype.kind == "f":
                for copy in np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1)).tolist():
                    found.setdefault(copy, _component(leaf, array[copy]))
        for copy in np.flatnonzero(~np.isfinite(rewards_N)).tolist():
            found.setdefault(copy, f"reward is {rewards_N[copy]}")
        return [NotFinite(copy, component) for copy, component in sorted(found.items())]


def _component(leaf: _Leaf, value: Any) -> str:
    """The first component of a leaf that is not finite."""
    numbers = np.asarray(value)
    index = np.unravel_index(int(np.flatnonzero(~np.isfinite(numbers.reshape(-1)))[0]), numbers.shape)
    where = f"[{', '.join(str(int(each)) for each in index)}]" if index else ""
    return f"{leaf.name}{where} is {numbers[index]}"


def _leaves(space: Any, path: tuple[Any, ...]) -> Iterator[_Leaf]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = cast("Any", space).spaces
        for key, part in parts.items() if isinstance(space, spaces.Dict) else enumerate(parts):
            yield from _leaves(part, (*path, key))
        return
    name = ".".join([OBSERVATIONS, *map(str, path)])
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
        numeric = cast("Any", space)
        yield _Leaf(path, name, tuple(numeric.shape), numeric.dtype)
    else:
        yield _Leaf(path, name, None, object)


def _structured(space: Any, arrays: Iterator[Array]) -> Any:
    """The arrays of the leaves, in their order, as a batch of the space."""
    if isinstance(space, spaces.Dict):
        return {key: _structured(part, arrays) for key, part in cast("Any", space).spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_structured(part, arrays) for part in cast("Any", space).spaces)
    return next(arrays)
