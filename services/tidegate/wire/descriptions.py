"""Descriptions of environments to messages and back."""

import math
from collections.abc import Sequence

import msgspec

from tidegate.core.errors import RecordError
from tidegate.core.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    EnvironmentDescription,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    TupleSpace,
)
from tidegate.v1 import environment_service_pb2 as pb
from tidegate.v1 import space_pb2


def description_to_proto(description: EnvironmentDescription) -> pb.DescribeEnvironmentResponse:
    """A description as a message."""
    return pb.DescribeEnvironmentResponse(
        env_id=description.env_id,
        observation_space=space_to_proto(description.observation_space),
        action_space=space_to_proto(description.action_space),
        max_episode_steps=description.max_episode_steps,
        is_vectorised=description.is_vectorised,
        steps_per_cpu_s=description.steps_per_cpu_s,
    )


def description_from_proto(message: pb.DescribeEnvironmentResponse) -> EnvironmentDescription:
    """A description from a message.

    Raises:
        RecordError: a space is of an unknown kind, or contradicts itself.
    """
    return EnvironmentDescription(
        env_id=message.env_id,
        observation_space=space_from_proto(message.observation_space),
        action_space=space_from_proto(message.action_space),
        max_episode_steps=message.max_episode_steps,
        is_vectorised=message.is_vectorised,
        steps_per_cpu_s=message.steps_per_cpu_s,
    )


def space_to_proto(space: Space) -> space_pb2.Space:
    """A space as a message."""
    match space:
        case BoxSpace(shape, dtype, low, high):
            return space_pb2.Space(box=space_pb2.BoxSpace(shape=shape, dtype=dtype, low=low, high=high))
        case DiscreteSpace(num_values, start):
            return space_pb2.Space(discrete=space_pb2.DiscreteSpace(num_values=num_values, start=start))
        case MultiDiscreteSpace(shape, nums_values, starts):
            return space_pb2.Space(
                multi_discrete=space_pb2.MultiDiscreteSpace(
                    shape=shape, nums_values=nums_values, starts=starts
                )
            )
        case MultiBinarySpace(shape):
            return space_pb2.Space(multi_binary=space_pb2.MultiBinarySpace(shape=shape))
        case DictSpace(spaces):
            parts = [
                space_pb2.NamedSpace(name=name, space=space_to_proto(part)) for name, part in spaces.items()
            ]
            return space_pb2.Space(dict=space_pb2.DictSpace(spaces=parts))
        case TupleSpace(spaces):
            return space_pb2.Space(tuple=space_pb2.TupleSpace(spaces=map(space_to_proto, spaces)))


def space_from_proto(message: space_pb2.Space) -> Space:
    """A space from a message.

    Raises:
        RecordError: it is of an unknown kind, or contradicts itself.
    """
    space = _space(message)
    sizes: Sequence[int] = ()
    match space:
        case BoxSpace(shape, _, low, high):
            sizes = shape
            is_whole = all(len(bounds) in (1, math.prod(shape)) for bounds in (low, high))
        case DiscreteSpace(num_values):
            is_whole = num_values > 0
        case MultiDiscreteSpace(shape, nums_values, starts):
            sizes = shape
            is_whole = len(nums_values) == len(starts) == math.prod(shape) and all(
                num > 0 for num in nums_values
            )
        case MultiBinarySpace(shape):
            sizes, is_whole = shape, True
        case DictSpace() | TupleSpace():
            is_whole = True
    if not is_whole or any(size < 0 for size in sizes):
        raise RecordError(f"A described space contradicts itself: {msgspec.structs.asdict(space)}"[:400])
    return space


def _space(message: space_pb2.Space) -> Space:
    match message.WhichOneof("kind"):
        case "box":
            box = message.box
            return BoxSpace(tuple(box.shape), box.dtype, tuple(box.low), tuple(box.high))
        case "discrete":
            return DiscreteSpace(message.discrete.num_values, message.discrete.start)
        case "multi_discrete":
            discrete = message.multi_discrete
            return MultiDiscreteSpace(
                tuple(discrete.shape), tuple(discrete.nums_values), tuple(discrete.starts)
            )
        case "multi_binary":
            return MultiBinarySpace(tuple(message.multi_binary.shape))
        case "dict":
            return DictSpace({part.name: space_from_proto(part.space) for part in message.dict.spaces})
        case "tuple":
            return TupleSpace(tuple(map(space_from_proto, message.tuple.spaces)))
        case None:
            raise RecordError(
                "A description holds a space of an unknown kind",
                why="the environment service is of another version",
                fix="run one version of Tidegate everywhere",
            )
