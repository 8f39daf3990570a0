"""What a page holds: one segment, the unit of insertion and eviction. All pages of a run are alike.

A page has ``num_steps`` (T) steps of ``num_envs`` (N) environments. Its tensors lie by environment, so that the rows of
one environment follow each other: (N, R, *shape), where R is T + 1 for observations, T for what belongs to a step, and
the number of stored starts for a recurrent state (``memory``, recorded as (R, N, M)). Images lie in blocks
(``blocks``): the tensors ``frames.*`` of ``algorithms.frame_stacks``, which ``starts.*`` refer to.
"""

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from tidegate.algorithms.frame_stacks import FRAMES, STARTS
from tidegate.core.errors import RecordError
from tidegate.core.records import Array
from tidegate.core.spaces import MEMORY, OBSERVATIONS, PRIORITIES

RowKind: TypeAlias = Literal["observation", "step", "state"]

# What says where episodes end; every segment has them.
FLAGS = ("valid", "terminated", "truncated")


class RingTensor(msgspec.Struct, frozen=True):
    """A tensor of every page: ``num_rows`` (R) rows of each environment, each of ``shape``."""

    name: str
    kind: RowKind
    num_rows: int
    shape: tuple[int, ...]
    dtype: str


class ImageTensor(msgspec.Struct, frozen=True):
    """The frames of an image observation, of ``frame_shape`` and uint8; ``stack``: how many make one observation."""

    name: str
    frame_shape: tuple[int, ...]
    stack: int

    def frame_bytes(self) -> int:
        """Bytes of one frame."""
        return math.prod(self.frame_shape)


class PageLayout(msgspec.Struct, frozen=True):
    """The layout of every page of a run."""

    num_steps: int
    num_envs: int
    tensors: tuple[RingTensor, ...]
    images: tuple[ImageTensor, ...]

    @property
    def units(self) -> int:
        """Rows of a page that may begin a unit of sampling: T * N."""
        return self.num_steps * self.num_envs

    def num_states(self) -> int:
        """Stored recurrent states of each environment; 0 for a policy without one."""
        return max((tensor.num_rows for tensor in self.tensors if tensor.kind == "state"), default=0)


def layout_of(tensors: Mapping[str, Array], *, name: str) -> PageLayout:
    """The layout of pages that hold segments such as this one; ``name`` is the segment's, in errors.

    Raises:
        RecordError: it is no segment, or a tensor belongs neither to its rows nor to its steps.
    """
    valid = tensors.get("valid")
    if valid is None or valid.ndim != 2 or not valid.size:
        raise RecordError(
            f"{name} is no segment: it has no tensor `valid` of shape (T, N)", fix="see docs/data.md"
        )
    num_steps, num_envs = (int(size) for size in valid.shape)
    images = tuple(
        _image(tensors, observation, name=name)
        for observation in (key.removeprefix(FRAMES) for key in tensors if key.startswith(FRAMES))
    )
    rings = tuple(
        _ring(key, tensor, num_steps=num_steps, num_envs=num_envs, name=name)
        for key, tensor in tensors.items()
        if key != PRIORITIES and not key.startswith(FRAMES)
    )
    layout = PageLayout(num_steps=num_steps, num_envs=num_envs, tensors=rings, images=images)
    known = {ring.name: ring for ring in rings}
    for flag in FLAGS:
        if flag not in known or known[flag].kind != "step" or known[flag].shape:
            raise RecordError(f"{name} has no tensor `{flag}` of shape (T, N)")
    num_states = layout.num_states()
    if num_states and num_steps % num_states:
        raise RecordError(
            f"{name} has {num_states} stored states in {num_steps} steps, which they do not divide"
        )
    return layout


def check_layout(tensors: Mapping[str, Array], layout: PageLayout, *, name: str) -> None:
    """Check that a segment fits the pages.

    Raises:
        RecordError: its layout is another one.
    """
    found = layout_of(tensors, name=name)
    if found != layout:
        raise RecordError(
            f"{name} has the layout {_summary(found)}, the replay buffer holds {_summary(layout)}",
            why="all segments of a run have the same tensors",
            fix="start in a new run folder to change the workload",
        )


def _ring(key: str, tensor: Array, *, num_steps: int, num_envs: int, name: str) -> RingTensor:
    rows = tensor.shape[0] if tensor.ndim >= 2 and tensor.shape[1] == num_envs else 0
    is_observation = key == OBSERVATIONS or key.startswith((f"{OBSERVATIONS}.", STARTS))
    kind: RowKind = "observation" if is_observation else "state" if key == MEMORY else "step"
    expected = {"observation": num_steps + 1, "step": num_steps, "state": max(1, rows)}[kind]
    if rows != expected:
        raise RecordError(
            f"{name} has {key} of shape {tensor.shape} in a segment of {num_steps} steps of {num_envs} environments"
        )
    return RingTensor(key, kind, rows, tuple(tensor.shape[2:]), tensor.dtype.str)


def _image(tensors: Mapping[str, Array], observation: str, *, name: str) -> ImageTensor:
    frames, starts = tensors[f"{FRAMES}{observation}"], tensors.get(f"{STARTS}{observation}")
    if starts is None or starts.ndim != 2 or not starts.size or starts.dtype != np.int32:
        raise RecordError(f"{name} has frames of {observation} without their starts")
    # The last observation of the last environment ends with the last frame (``algorithms.frame_stacks``).
    stack = len(frames) - int(starts[-1, -1])
    if (
        frames.dtype != np.uint8
        or stack < 1
        or not 0 <= int(starts.min()) <= int(starts.max()) <= len(frames) - stack
    ):
        raise RecordError(f"{name} has frames of {observation} that its starts do not fit")
    return ImageTensor(observation, tuple(frames.shape[1:]), stack)


def _summary(layout: PageLayout) -> str:
    names = ", ".join(f"{tensor.name} {tensor.shape}" for tensor in layout.tensors)
    images = "".join(f", {image.name} {image.frame_shape}" for image in layout.images)
    return f"{layout.num_steps} x {layout.num_envs} steps: {names}{images}"
