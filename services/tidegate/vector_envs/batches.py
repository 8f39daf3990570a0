"""Observations of several copies in one batch, as Gymnasium lays them out: arrays, or Dicts and Tuples of arrays.

Shapes: N copies; a leaf is a space that is neither Dict nor Tuple.
"""

import math
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array
from numpy.typing import NDArray

from tidegate.core.records import Array
from tidegate.core.spaces import OBSERVATIONS


class NotFinite(msgspec.Struct, frozen=True):
    """The first number of one copy that is not finite: ``component`` is such as ``observations.position[2] is nan``."""

    copy: int
    component: str


class _Leaf(msgspec.Struct, frozen=True):
    """Where a leaf is in an observation, the name it is recorded under, and its shape in one observation."""

    path: tuple[Any, ...]
    name: str
    shape: tuple[int, ...]

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

    def zeros(self) -> "ObservationBatch":
        """A batch of zeros."""
        return self._batch(np.zeros)

    def empty(self) -> "ObservationBatch":
        """A batch whose rows are to be written."""
        return self._batch(np.empty)

    def adopt(self, observations: Any) -> "ObservationBatch":
        """The batch that a vector form returned."""
        return ObservationBatch(observations, self._leaves)

    def _batch(self, allocate: Any) -> "ObservationBatch":
        return ObservationBatch(create_empty_array(self._space, self._num_envs, fn=allocate), self._leaves)


class ObservationBatch:
    """One batch; ``observations`` is what an environment returns. Part of an actor's hot loop."""

    __slots__ = ("_parts", "observations")

    def __init__(self, observations: Any, leaves: tuple[_Leaf, ...]) -> None:
        self.observations = observations
        self._parts: list[tuple[_Leaf, Array]] = [
            (leaf, leaf.of(observations) if leaf.path else observations) for leaf in leaves
        ]

    def write(self, copy: int, observation: Any) -> None:
        """Set the row of one copy.

        Raises:
            ValueError: a part has another shape than its space; assignment would repeat it silently.
        """
        for leaf, array in self._parts:
            value = leaf.of(observation) if leaf.path else observation
            array[copy] = value
            shape: tuple[int, ...] = value.shape if hasattr(value, "shape") else np.shape(value)
            if shape != leaf.shape:
                raise ValueError(f"{leaf.name} has shape {shape}, and its space {leaf.shape}")

    def repeat(self, before: "ObservationBatch", copy: int) -> None:
        """Set the row of one copy to that of the batch before."""
        for (_, array), (_, array_before) in zip(self._parts, before._parts, strict=True):
            array[copy] = array_before[copy]

    def is_finite(self, rewards_N: NDArray[Any]) -> bool:
        """Whether observations and rewards contain neither NaN nor infinities; may doubt it of huge numbers.

        A microsecond: the sum of squares of numbers is finite only if each of them is.
        """
        total = rewards_N.dot(rewards_N)
        for _, array in self._parts:
            if array.dtype.kind == "f":
                flat = array.ravel("K")  # any order, without a copy
                total = total + flat.dot(flat)
        return math.isfinite(total)

    def not_finite(self, rewards_N: NDArray[Any]) -> list[NotFinite]:
        """For each copy with a number that is not finite, the first one; the reward counts as a component."""
        found: dict[int, str] = {}
        for leaf, array in self._parts:
            if array.dtype.kind == "f":
                for copy in np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1)).tolist():
                    found.setdefault(copy, _component(leaf, array[copy]))
        for copy in np.flatnonzero(~np.isfinite(rewards_N)).tolist():
            found.setdefault(copy, f"reward is {rewards_N[copy]}")
        return [NotFinite(copy, component) for copy, component in sorted(found.items())]

    def copied(self) -> "ObservationBatch":
        """A copy with zeros for numbers that are not finite; a vector form may write into its batch again."""
        arrays = iter([np.nan_to_num(array, nan=0.0, posinf=0.0, neginf=0.0) for _, array in self._parts])
        return ObservationBatch(_rebuilt(self.observations, arrays), tuple(leaf for leaf, _ in self._parts))


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
    else:
        yield _Leaf(path, ".".join([OBSERVATIONS, *map(str, path)]), tuple(space.shape or ()))


def _rebuilt(observations: Any, arrays: Iterator[Array]) -> Any:
    """The same structure with other arrays, in the order of the leaves."""
    if isinstance(observations, dict):
        return {key: _rebuilt(part, arrays) for key, part in cast("dict[Any, Any]", observations).items()}
    if isinstance(observations, tuple):
        return tuple(_rebuilt(part, arrays) for part in cast("tuple[Any, ...]", observations))
    return next(arrays)
