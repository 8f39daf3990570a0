"""Segments: fixed-length pieces of vectorised environments, as actors record them and objectives train on them.

A segment is one trajectory: ``unroll_length`` steps (T) of ``num_envs`` environments (N). Its tensors, C-contiguous:

| name | shape | dtype | meaning |
|---|---|---|---|
| observations[.part] | (T+1, N, *shape) | float32, int32, uint8 | before each step; the last row followed the last |
| actions | (T, N, *shape) | int32, float32 | the action at t: indices from 0, or a Gaussian's sample before clipping |
| behavior_logprobs | (T, N) | float32 | log μ(action at t), by the version that acted at t; at most 0 if discrete |
| rewards | (T, N) | float32 | of step t, as the environment gave it |
| terminated | (T, N) | bool or uint8 | the episode terminated at t: no bootstrap |
| truncated | (T, N) | bool or uint8 | the episode was truncated at t by a time limit: bootstrap |
| valid | (T, N) | bool or uint8 | 0 on rows that are no steps |
| memory | (N, M) or (R, N, M) | float32 | of policies with memory: the state before the first row, or R rows (replay) |
| priorities | (T, N) | float32 | first priorities of replayed units, of a Q-network only; the store reads them |

``segment_tensors`` makes this table for an environment: Dict and Tuple observations have one tensor a part; a shape is
the part's own, () of an index (Discrete); indices are int32, images and flags uint8, all other numbers float32. Actions
of MultiDiscrete and MultiBinary are flat, one index a component. Images have each frame once, in two tensors instead of
one (``frame_stacks``); ``with_frames`` brings segments that have them in full into this form.

Where an episode ends at t, row t + 1 is no step: its observation is the last one of the episode, its action is
ignored, and the observation after it is the first of the next episode. This is Gymnasium's NEXT_STEP autoreset, and it
is why no separate final observation is needed: a truncated episode bootstraps from the observation at t + 1, which is
its own. ``valid`` is 0 exactly on those rows, also when one is the first row of a segment, so an engine carries "this
environment ended at the step before" from one segment into the next. All other values of such a row are finite and
ignored. When both flags are set, the episode terminated. Counts of steps are of valid ones.

A step that failed (the environment raised, or returned NaN) is no step: nothing of its transition is known. Where
step t failed the episode is truncated at t - 1 and bootstraps from the observation at t, the last one that is known;
row t has ``truncated`` set as if it ended an episode too, so that row t + 1 is the reset. Where t is the first row of a
segment the one before it has no flag and needs none, as its last step bootstraps from that observation anyway; a reader
that joins segments takes an invalid first row without an end before it for a truncation. A failed step is never
``terminated``: a value of 0 there would teach the policy to seek or to shun what breaks the environment.

Engines that reset within the step (SAME_STEP) write the final observation and an invalid row to get this layout.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tidegate.algorithms.frame_stacks import STARTS
from tidegate.core.errors import ConfigError, RecordError
from tidegate.core.records import Array
from tidegate.core.spaces import (
    MEMORY,
    BoxSpace,
    DiscreteSpace,
    EnvironmentDescription,
    Leaf,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    is_image,
    observation_leaves,
    recorded_dtype,
    recorded_shape,
)

FLAGS = ("bool", "uint8")


@dataclass(frozen=True, slots=True)
class SegmentTensor:
    """One tensor of a segment.

    ``letters``: of its first sizes: S = T + 1 or T, and N. ``shape``: of the rest. ``dtypes``: it may have.
    ``nums_values``: of an index, how many values each component has; empty for numbers.
    """

    letters: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    nums_values: tuple[int, ...] = ()


def segment_tensors(description: EnvironmentDescription, *, memory_size: int = 0) -> dict[str, SegmentTensor]:
    """Every tensor of a segment of this environment, by name; observations first.

    ``memory_size``: numbers of state of the policy; 0 for none.

    Raises:
        ConfigError: its actions have several parts.
    """
    leaves = observation_leaves(description.observation_space)
    return {
        **dict(_observation_tensor(name, leaf) for name, leaf in leaves.items()),
        "actions": _action_tensor(description.action_space),
        "behavior_logprobs": SegmentTensor("TN", (), ("float32",)),
        "rewards": SegmentTensor("TN", (), ("float32",)),
        "terminated": SegmentTensor("TN", (), FLAGS),
        "truncated": SegmentTensor("TN", (), FLAGS),
        "valid": SegmentTensor("TN", (), FLAGS),
        **({MEMORY: SegmentTensor("N", (memory_size,), ("float32",))} if memory_size else {}),
    }


def _observation_tensor(name: str, leaf: Leaf) -> tuple[str, SegmentTensor]:
    if is_image(leaf):
        return f"{STARTS}{name}", SegmentTensor("SN", (), ("int32",))
    return name, SegmentTensor("SN", recorded_shape(leaf), (recorded_dtype(leaf),), _nums_values(leaf))


def _nums_values(leaf: Leaf) -> tuple[int, ...]:
    if isinstance(leaf, DiscreteSpace):
        return (leaf.num_values,)
    return leaf.nums_values if isinstance(leaf, MultiDiscreteSpace) else ()


def _action_tensor(space: Space) -> SegmentTensor:
    match space:
        case DiscreteSpace():
            return SegmentTensor("TN", (), ("int32",), (space.num_values,))
        case MultiDiscreteSpace():
            return SegmentTensor("TN", (len(space.nums_values),), ("int32",), space.nums_values)
        case MultiBinarySpace():
            num_flags = math.prod(space.shape)
            return SegmentTensor("TN", (num_flags,), ("int32",), (2,) * num_flags)
        case BoxSpace():
            return SegmentTensor("TN", space.shape, ("float32",))
        case _:
            raise ConfigError(
                "Segments record no actions of several parts",
                why=f"the environment's are {space}",
                fix="wrap the environment so that its actions are Discrete, MultiDiscrete, MultiBinary or a Box",
            )


def check_segment(
    tensors: Mapping[str, Array], expected: Mapping[str, SegmentTensor], *, name: str
) -> tuple[int, int]:
    """Check that a segment (``with_frames``) has the ``expected`` tensors; returns its steps and environments (T, N).

    ``name``: of the segment in errors.

    Raises:
        RecordError: a tensor is missing, has another shape or dtype, or contains an index that its space does not have.
    """
    logprobs = tensors.get("behavior_logprobs")
    if logprobs is None or logprobs.ndim != 2:
        raise RecordError(f"{name} has no behavior_logprobs of shape (T, N)")
    num_steps, num_envs = (int(size) for size in logprobs.shape)
    sizes = {"S": num_steps + 1, "T": num_steps, "N": num_envs}
    for tensor_name, wanted in expected.items():
        tensor = tensors.get(tensor_name)
        shape = (*(sizes[letter] for letter in wanted.letters), *wanted.shape)
        if tensor is None:
            raise RecordError(f"{name} has no {tensor_name}", fix="see algorithms/segments.py for the layout")
        if tuple(tensor.shape) != shape:
            raise RecordError(f"{name} has {tensor_name} of shape {tuple(tensor.shape)}, expected {shape}")
        if tensor.dtype.name not in wanted.dtypes:
            raise RecordError(f"{name} has {tensor_name} of type {tensor.dtype}, expected {wanted.dtypes[0]}")
        if wanted.nums_values:
            _check_indices(tensor, wanted, name=f"{name} has {tensor_name}")
    return num_steps, num_envs


def _check_indices(tensor: Array, wanted: SegmentTensor, *, name: str) -> None:
    # One bound for all is one pass; bounds of their own are compared component by component.
    limits = np.array(wanted.nums_values).reshape(wanted.shape) if wanted.shape else wanted.nums_values[0]
    if tensor.size and not (int(tensor.min()) >= 0 and bool((tensor < limits).all())):
        raise RecordError(
            f"{name} from {int(tensor.min())} to {int(tensor.max())}",
            why=f"the environment's space has {wanted.nums_values} values, counted from 0",
        )
