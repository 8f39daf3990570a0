"""Images of a segment, each stored once: the frames of every environment in order, and where each observation begins.

An observation of F stacked frames repeats F - 1 of them from its predecessor: (T+1, N, F, H, W) has F times the bytes
of what was seen. A segment records such an observation as two tensors instead, by the name of the observation:

| name | shape | dtype | meaning |
|---|---|---|---|
| frames.<name> | (K, H, W) | uint8 | the frames of environment 0 in order, then those of environment 1, ... |
| starts.<name> | (T+1, N) | int32 | the position in frames of the observation's first frame |

The observation at (t, n) is ``frames[starts[t, n] : starts[t, n] + F]``, exactly. One that shifts its predecessor by a
frame adds one frame and starts one later; any other (after a reset, whatever the stack is filled with then) adds all of
its F frames. An image that is no stack is the case F = 1, whose frames have the image's own shape. Frames of one
environment lie together, because compression finds what they share only within 64 KiB (``wire.compression``).

Shapes: T steps, N environments, S = T + 1 observations, F frames a stack, K frames a segment, P bytes of a frame.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.core.errors import RecordError
from tidegate.core.records import Array
from tidegate.core.spaces import Leaf, is_image, recorded_shape

FRAMES, STARTS = "frames.", "starts."
# More channels than this in front are rows of an image whose channels come last.
STACK_FRAMES_MAX = 16


def stack_size(leaf: Leaf) -> int:
    """F: the leading dimension of (F, H, W) and (F, H, W, C) images with F below H and W, else 1; 0 for no image.

    Channels in front of an image look like a stack and are recorded exactly as well, without saving anything.
    """
    if not is_image(leaf):
        return 0
    num_frames, *sides = recorded_shape(leaf)
    is_stack = len(sides) > 1 and num_frames <= STACK_FRAMES_MAX and num_frames < min(sides[:2])
    return num_frames if is_stack else 1


def frame_shape(leaf: Leaf) -> tuple[int, ...]:
    """The shape of one stored frame of an image."""
    shape = recorded_shape(leaf)
    return shape[1:] if stack_size(leaf) > 1 else shape


class FrameRecorder:
    """Records the observations of one image in the order of steps; ``num_steps`` + 1 of them are a segment."""

    def __init__(self, leaf: Leaf, *, num_steps: int, num_envs: int) -> None:
        """Memory for one new frame a step; resets make it grow."""
        self._stack_size = stack_size(leaf)
        self._frame_shape = frame_shape(leaf)
        self._num_bytes = int(np.prod(self._frame_shape))
        # Compared as 8 bytes at once where frames allow it: an eighth of the comparisons.
        self._word = np.dtype(np.uint64 if self._num_bytes % 8 == 0 else np.uint8)
        num_words = self._num_bytes // self._word.itemsize
        self._frames_NKW = np.empty((num_envs, num_steps + 2 * self._stack_size, num_words), self._word)
        self._counts_N = np.zeros(num_envs, np.int64)
        self._starts_SN = np.empty((num_steps + 1, num_envs), np.int64)
        self._num_rows = 0
        self._envs_N = np.arange(num_envs)

    def append(self, observations: Array) -> None:
        """Record the next observation of every environment, (N, F, H, W) or (N, H, W, ...), uint8."""
        num_envs = len(self._envs_N)
        seen = np.ascontiguousarray(observations).reshape(num_envs, self._stack_size, self._num_bytes)
        words_NFW: NDArray[np.unsignedinteger] = seen.view(self._word)
        is_shifted_N = self._are_shifted(words_NFW)
        self._make_room(self._stack_size)
        fresh, shifted = np.flatnonzero(~is_shifted_N), np.flatnonzero(is_shifted_N)
        self._frames_NKW[shifted, self._counts_N[shifted]] = words_NFW[shifted, -1]
        for env in fresh:
            count = self._counts_N[env]
            self._frames_NKW[env, count : count + self._stack_size] = words_NFW[env]
        self._counts_N += np.where(is_shifted_N, 1, self._stack_size)
        self._starts_SN[self._num_rows] = self._counts_N - self._stack_size
        self._num_rows += 1

    def tensors(self, name: str) -> dict[str, Array]:
        """The tensors that record the observation ``name``, of the rows appended so far."""
        columns = [
            frames_KW[:count] for frames_KW, count in zip(self._frames_NKW, self._counts_N, strict=True)
        ]
        frames = np.concatenate(columns).view(np.uint8).reshape(-1, *self._frame_shape)
        first_N = np.cumsum(self._counts_N) - self._counts_N
        starts_SN = (self._starts_SN[: self._num_rows] + first_N).astype(np.int32)
        return {f"{FRAMES}{name}": frames, f"{STARTS}{name}": starts_SN}

    def _are_shifted(self, words_NFW: NDArray[np.unsignedinteger]) -> NDArray[np.bool_]:
        """Whether each observation repeats the frames of the one before it, as they were recorded, but the first."""
        if self._num_rows == 0:
            return np.zeros(len(words_NFW), np.bool_)
        num_repeated = self._stack_size - 1
        positions_NF = self._counts_N[:, None] + np.arange(-num_repeated, 0)
        recorded_NFW = self._frames_NKW[self._envs_N[:, None], positions_NF]
        return (recorded_NFW == words_NFW[:, :num_repeated]).all(axis=(1, 2))

    def _make_room(self, num_frames: int) -> None:
        num_envs, capacity, num_words = self._frames_NKW.shape
        if int(self._counts_N.max()) + num_frames > capacity:
            larger = np.empty((num_envs, 2 * capacity, num_words), self._word)
            larger[:, :capacity] = self._frames_NKW
            self._frames_NKW = larger


def with_frames(tensors: Mapping[str, Array], leaves: Mapping[str, Leaf], *, name: str) -> dict[str, Array]:
    """A segment's tensors, images that it has in full as frames with their starts; the others are checked.

    ``leaves``: of all observations, by name. ``name``: of the segment in errors. Nothing is copied.

    Raises:
        RecordError: an image is missing, or its tensors are not of this layout.
    """
    checked = dict(tensors)
    for observation, leaf in leaves.items():
        if not is_image(leaf):
            continue
        where = f"{name} has {observation}"
        full = checked.pop(observation, None)
        frames, starts = checked.get(f"{FRAMES}{observation}"), checked.get(f"{STARTS}{observation}")
        if full is not None and frames is None and starts is None:
            frames, starts = _as_frames(full, leaf, name=where)
            checked |= {f"{FRAMES}{observation}": frames, f"{STARTS}{observation}": starts}
        elif full is None and frames is not None and starts is not None:
            _check(frames, starts, leaf, name=where)
        else:
            raise RecordError(
                f"{where} neither as frames with their starts nor in full",
                fix="see algorithms/frame_stacks.py for the layout",
            )
    return checked


def observed(frames: Any, starts: Any, leaf: Leaf, xp: Any) -> Any:
    """The observations (..., *leaf shape) that begin at ``starts`` (...); ``xp``: numpy or torch, whose they are."""
    size = stack_size(leaf)
    if size == 1:
        return frames[starts]
    return frames[starts[..., None] + xp.arange(size, device=starts.device)]


def _as_frames(full: Array, leaf: Leaf, *, name: str) -> tuple[Array, Array]:
    shape = recorded_shape(leaf)
    if full.dtype != np.uint8 or full.ndim != 2 + len(shape) or full.shape[2:] != shape:
        raise RecordError(
            f"{name} of shape {full.shape} and type {full.dtype}",
            why=f"its space is {leaf}: (T+1, N, *{shape}), uint8",
        )
    num_steps, num_envs = full.shape[:2]
    starts_SN = np.arange(num_steps * num_envs, dtype=np.int32).reshape(num_steps, num_envs)
    return full.reshape(-1, *frame_shape(leaf)), starts_SN * np.int32(stack_size(leaf))


def _check(frames: Array, starts: Array, leaf: Leaf, *, name: str) -> None:
    size = stack_size(leaf)
    if not size or frames.dtype != np.uint8 or frames.shape[1:] != frame_shape(leaf):
        raise RecordError(
            f"{name} in frames of shape {frames.shape[1:]} and type {frames.dtype}",
            why=f"its space is {leaf}",
        )
    if starts.ndim != 2 or starts.dtype != np.int32:
        raise RecordError(f"{name} with starts of shape {starts.shape} and type {starts.dtype}")
    if starts.size and not 0 <= int(starts.min()) <= int(starts.max()) <= len(frames) - size:
        raise RecordError(
            f"{name} with stacks from {int(starts.min())} to {int(starts.max())}",
            why=f"it has {len(frames)} frames, {size} in a stack",
        )
