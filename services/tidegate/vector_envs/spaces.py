"""Gymnasium's spaces as the plain values of ``core.spaces``."""

import math
from typing import Any, cast

import gymnasium.spaces as gym_spaces
import numpy as np

from tidegate.core.errors import ConfigError
from tidegate.core.records import Array
from tidegate.core.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    EnvironmentDescription,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    TupleSpace,
    recorded_shape,
)

SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them"
# Segments, messages and networks grow with these; a larger space is a mistake or needs a wrapper.
COMPONENTS_MAX = 1 << 20
BOUNDS_MAX = 1 << 18
NUM_VALUES_MAX = 1 << 20


def plain_space(space: Any, *, place: str) -> Space:
    """A Gymnasium space as a plain value; ``place`` names it in errors.

    Raises:
        ConfigError: the space is of an unsupported kind, or too large.
    """
    if isinstance(space, gym_spaces.Box):
        return _box(cast("Any", space), place)
    if isinstance(space, gym_spaces.Discrete):
        single = cast("Any", space)
        _check_size(int(single.n), NUM_VALUES_MAX, place, "values")
        return DiscreteSpace(num_values=int(single.n), start=int(single.start))
    if isinstance(space, gym_spaces.MultiDiscrete):
        discrete = cast("Any", space)
        _check_size(int(discrete.nvec.sum()), NUM_VALUES_MAX, place, "values")
        return MultiDiscreteSpace(
            shape=_shape(discrete),
            nums_values=tuple(int(num) for num in discrete.nvec.flat),
            starts=tuple(int(start) for start in discrete.start.flat),
        )
    if isinstance(space, gym_spaces.MultiBinary):
        shape = _shape(space)
        _check_size(math.prod(shape), COMPONENTS_MAX, place, "components")
        return MultiBinarySpace(shape=shape)
    if isinstance(space, gym_spaces.Dict):
        parts = cast("dict[str, Any]", cast("Any", space).spaces)
        return DictSpace(
            {str(name): plain_space(part, place=f"{place}.{name}") for name, part in parts.items()}
        )
    if isinstance(space, gym_spaces.Tuple):
        members = cast("tuple[Any, ...]", cast("Any", space).spaces)
        return TupleSpace(
            tuple(plain_space(part, place=f"{place}.{index}") for index, part in enumerate(members))
        )
    raise ConfigError(
        f"{place} is {_told(space)}",
        why=f"supported are {SUPPORTED}",
        fix="give the environment one of these, or leave a part out by the wrapper FilterObservation",
    )


def _box(space: Any, place: str) -> BoxSpace:
    shape, dtype = _shape(space), np.dtype(space.dtype)
    if dtype.kind not in "fiub":
        raise ConfigError(f"{place} is a Box of {dtype}", why="only real numbers can be recorded")
    _check_size(math.prod(shape), COMPONENTS_MAX, place, "components")
    low, high = _bounds(space.low), _bounds(space.high)
    _check_size(max(len(low), len(high)), BOUNDS_MAX, place, "different bounds")
    return BoxSpace(shape=shape, dtype=dtype.name, low=low, high=high)


def _bounds(values: Array) -> tuple[float, ...]:
    """One bound where all are equal, else one for each component in C order; one as well for a Box without any."""
    flat = np.asarray(values, np.float64).ravel()
    if flat.size == 0:
        return (0.0,)
    return (float(flat[0]),) if (flat == flat[0]).all() else tuple(flat.tolist())


def _shape(space: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in space.shape)


def _check_size(size: int, size_max: int, place: str, unit: str) -> None:
    if size > size_max:
        raise ConfigError(
            f"{place} has {size:,} {unit}",
            why=f"at most {size_max:,} can be recorded",
            fix="make it smaller by a wrapper, such as ResizeObservation",
        )


def _told(space: Any) -> str:
    text = str(space)
    return text if len(text) <= 120 else f"{text[:117]}..."


def check_described(envs: Any, description: EnvironmentDescription) -> None:
    """Check that opened environments are those that the policy was built for.

    Raises:
        ConfigError: they observe or accept something else.
    """
    found = plain_space(envs.single_observation_space, place="The space of the observations")
    accepted = plain_space(envs.single_action_space, place="The space of the actions")
    for name, here, there in (
        ("observes", found, description.observation_space),
        ("accepts", accepted, description.action_space),
    ):
        if here != there:
            raise ConfigError(
                f"Environment {description.env_id!r} {name} {str(here)[:120]} in this process",
                why=f"the environment service described {str(there)[:120]}",
                fix="run the same version of the environment's package everywhere, and restart the run",
            )


def check_observation(space: Space, observations: Any, *, place: str) -> None:
    """Check a batch of observations against the space of one.

    Raises:
        ConfigError: a part is missing, has another shape, or is an integer outside of its range.
    """
    if isinstance(space, DictSpace):
        for name, part in space.spaces.items():
            check_observation(part, observations[name], place=f"{place}, part {name}")
        return
    if isinstance(space, TupleSpace):
        for index, part in enumerate(space.spaces):
            check_observation(part, observations[index], place=f"{place}, part {index}")
        return
    values: Array = np.asarray(observations)
    shape = recorded_shape(space)
    if values.shape[1:] != shape:
        raise ConfigError(
            f"{place} has the shape {values.shape[1:]}",
            why=f"its space declares {shape}",
            fix="correct the environment's observation_space or what it returns",
        )
    if isinstance(space, DiscreteSpace):
        low, high = space.start, space.start + space.num_values - 1
    elif isinstance(space, MultiDiscreteSpace):
        starts = np.asarray(space.starts).reshape(shape)
        low, high = starts, starts + np.asarray(space.nums_values).reshape(shape) - 1
    else:
        return
    if (values < low).any() or (values > high).any():
        raise ConfigError(
            f"{place} is {values[0]}",
            why=f"its space declares {low} to {high}",
            fix="correct the environment's observation_space or what it returns",
        )
