"""What an environment observes and accepts, as plain values: the answer of ``DescribeEnvironment``.

The environment service opens one copy of the run's environment and describes it; actor and learner build the same
network from the description, so that the learner needs neither the environment nor the package that provides it.
"""

import math
from typing import Any, TypeAlias, cast

import msgspec

from tidegate.core.errors import ConfigError

# The tensor of an observation that is neither Dict nor Tuple; parts of those are ``observations.<name>``.
OBSERVATIONS = "observations"
# The tensor of the state before a segment's first row, of a policy with memory.
MEMORY = "memory"
# The tensor of first priorities, of a policy whose actor computes them: (T, N), for the replay of the trajectory store.
PRIORITIES = "priorities"


class BoxSpace(msgspec.Struct, frozen=True, tag="box", forbid_unknown_fields=True):
    """Arrays of one shape. ``low`` and ``high``: one bound for all components, or one for each in C order."""

    shape: tuple[int, ...]
    dtype: str
    low: tuple[float, ...]
    high: tuple[float, ...]


class DiscreteSpace(msgspec.Struct, frozen=True, tag="discrete", forbid_unknown_fields=True):
    """One of ``num_values`` integers from ``start``. Segments and networks count from 0."""

    num_values: int
    start: int = 0


class MultiDiscreteSpace(msgspec.Struct, frozen=True, tag="multi_discrete", forbid_unknown_fields=True):
    """An array of integers (C order of ``shape``): component i is one of ``nums_values[i]`` from ``starts[i]``."""

    shape: tuple[int, ...]
    nums_values: tuple[int, ...]
    starts: tuple[int, ...]


class MultiBinarySpace(msgspec.Struct, frozen=True, tag="multi_binary", forbid_unknown_fields=True):
    """An array of zeros and ones."""

    shape: tuple[int, ...]


class DictSpace(msgspec.Struct, frozen=True, tag="dict", forbid_unknown_fields=True):
    """Named parts, in Gymnasium's order."""

    spaces: dict[str, "Space"]


class TupleSpace(msgspec.Struct, frozen=True, tag="tuple", forbid_unknown_fields=True):
    """Parts by position, named "0", "1" and so on."""

    spaces: tuple["Space", ...]


Leaf: TypeAlias = BoxSpace | DiscreteSpace | MultiDiscreteSpace | MultiBinarySpace
Space: TypeAlias = Leaf | DictSpace | TupleSpace


class EnvironmentDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One environment as the run file configures it: with its arguments, wrappers and stacked frames.

    ``max_episode_steps``: the registered time limit; 0 for none. ``is_vectorised``: it has a vector form of its own,
    which steps all copies in one call. ``steps_per_cpu_s``: steps of one copy that a second of CPU makes, measured
    under random actions; 0 when not measured.
    """

    env_id: str
    observation_space: Space
    action_space: Space
    max_episode_steps: int = 0
    is_vectorised: bool = False
    steps_per_cpu_s: float = 0.0


def observation_leaves(space: Space) -> dict[str, Leaf]:
    """The tensors that record an observation, by name: ``observations``, or ``observations.<part>`` for each part.

    Raises:
        ConfigError: a Dict or Tuple has no parts, or two parts would have the same name.
    """
    leaves = list(_leaves(OBSERVATIONS, space))
    by_name = dict(leaves)
    if not leaves:
        raise ConfigError("The environment's observations have no parts", why=f"its space is {space}")
    if len(by_name) < len(leaves):
        raise ConfigError(
            "Two parts of the environment's observations would be recorded under one name",
            why=f"the names are {', '.join(name for name, _ in leaves)}",
            fix="rename the parts: a dot in a name separates nested parts",
        )
    return by_name


def _leaves(name: str, space: Space) -> list[tuple[str, Leaf]]:
    if isinstance(space, DictSpace):
        parts = list(space.spaces.items())
    elif isinstance(space, TupleSpace):
        parts = [(str(index), part) for index, part in enumerate(space.spaces)]
    else:
        return [(name, space)]
    return [leaf for part_name, part in parts for leaf in _leaves(f"{name}.{part_name}", part)]


def is_observation(name: str) -> bool:
    """Whether a recorded tensor of this name is an observation or a part of one."""
    return name == OBSERVATIONS or name.startswith(f"{OBSERVATIONS}.")


def recorded_shape(space: Leaf) -> tuple[int, ...]:
    """The shape of one recorded observation or action: () for Discrete."""
    return () if isinstance(space, DiscreteSpace) else space.shape


def recorded_dtype(space: Leaf) -> str:
    """The dtype that segments record: indices int32, images and flags uint8, every other number float32."""
    if isinstance(space, DiscreteSpace | MultiDiscreteSpace):
        return "int32"
    if isinstance(space, MultiBinarySpace) or space.dtype == "uint8":
        return "uint8"
    return "float32"


def is_image(space: Leaf) -> bool:
    """Whether the space holds uint8 images: height and width, with channels or stacked frames, or with both."""
    return isinstance(space, BoxSpace) and space.dtype == "uint8" and len(space.shape) in (2, 3, 4)


def num_inputs(space: Leaf) -> int:
    """Numbers that a network without convolutions reads: components, or the length of their one-hot vectors."""
    if isinstance(space, DiscreteSpace):
        return space.num_values
    if isinstance(space, MultiDiscreteSpace):
        return sum(space.nums_values)
    return math.prod(space.shape)


def description_to_json(description: EnvironmentDescription) -> bytes:
    """A description as JSON, whose numbers are finite: null is the bound of a component that has none."""
    return msgspec.json.encode(description)


def description_from_json(data: bytes | str) -> EnvironmentDescription:
    """Read back what ``description_to_json`` wrote.

    Raises:
        msgspec.DecodeError: it is no description.
    """
    return msgspec.convert(_with_infinite_bounds(msgspec.json.decode(data)), EnvironmentDescription)


def _with_infinite_bounds(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_infinite_bounds(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    entries = cast("dict[str, Any]", value)
    whole = {name: _with_infinite_bounds(each) for name, each in entries.items()}
    if entries.get("type") == "box":
        for name, bound in (("low", -math.inf), ("high", math.inf)):
            whole[name] = [bound if each is None else each for each in entries[name]]
    return whole
