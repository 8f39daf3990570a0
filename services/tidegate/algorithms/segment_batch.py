"""Segments side by side, as tensors of one learner step.

Shapes: T steps, N environments of all segments in a batch, S = T + 1 observations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tidegate.algorithms.frame_stacks import FRAMES, STARTS
from tidegate.core.errors import RecordError
from tidegate.core.records import Array, VersionSpan
from tidegate.core.spaces import MEMORY, is_observation

UNKNOWN_VERSION = -1


@dataclass(frozen=True, slots=True)
class SegmentBatch:
    """Segments stacked along N, as tensors on the learner's device.

    ``observations``: (S, N, ...) by name, of the recorded types. Of images they are positions (S, N), int64, in
    ``frames``, from which ``frame_stacks.observed`` takes as many as are computed at once. ``actions_TN``: (T, N, ...),
    int64 or float32. Flags are bool. ``segment_of_N``: the segment of each environment's column. ``version_steps_TN``:
    the step of the version that acted; all -1 where that was not given. ``memory_NM``: the recorded state before the
    first row; (N, 0) of policies without memory.
    """

    observations: dict[str, Tensor]
    frames: dict[str, Tensor]
    actions_TN: Tensor
    behavior_logprobs_TN: Tensor
    rewards_TN: Tensor
    terminated_TN: Tensor
    truncated_TN: Tensor
    valid_TN: Tensor
    segment_of_N: Tensor
    version_steps_TN: Tensor
    memory_NM: Tensor

    def num_steps(self) -> int:
        """The number of valid steps."""
        return int(self.valid_TN.sum())


def stack_segments(
    segments: Sequence[Mapping[str, Array]],
    *,
    device: torch.device,
    spans: Sequence[Sequence[VersionSpan]] = (),
) -> SegmentBatch:
    """Stack checked segments (``frame_stacks.with_frames``) of the same environment and length.

    ``spans``: which version made which steps of each segment; without them no step knows its version.

    Raises:
        RecordError: there are none, or their lengths differ.
    """
    lengths = {len(tensors["rewards"]) for tensors in segments}
    if len(lengths) != 1:
        raise RecordError(
            f"A batch needs segments of one length, not of {sorted(lengths)} steps",
            fix="workload.unroll_length is the same for a whole run: start in a new run folder to change it",
        )

    def beside(name: str, dtype: torch.dtype | None = None) -> Tensor:
        joined = np.concatenate([tensors[name] for tensors in segments], axis=1)
        return torch.as_tensor(joined).to(device=device, dtype=dtype)

    actions = beside("actions")
    images = [name.removeprefix(FRAMES) for name in segments[0] if name.startswith(FRAMES)]
    return SegmentBatch(
        observations={
            **{name: beside(name) for name in segments[0] if is_observation(name)},
            **{name: _starts(segments, name, device=device) for name in images},
        },
        frames={name: _frames(segments, name, device=device) for name in images},
        # torch selects by int64.
        actions_TN=actions if actions.is_floating_point() else actions.to(torch.int64),
        behavior_logprobs_TN=beside("behavior_logprobs"),
        rewards_TN=beside("rewards"),
        terminated_TN=beside("terminated", torch.bool),
        truncated_TN=beside("truncated", torch.bool),
        valid_TN=beside("valid", torch.bool),
        segment_of_N=torch.arange(len(segments), device=device).repeat_interleave(
            torch.tensor([tensors["rewards"].shape[1] for tensors in segments], device=device)
        ),
        version_steps_TN=_version_steps(segments, spans, device=device),
        memory_NM=_memory(segments, device=device),
    )


def _version_steps(
    segments: Sequence[Mapping[str, Array]], spans: Sequence[Sequence[VersionSpan]], *, device: torch.device
) -> Tensor:
    parts = [np.full(tensors["rewards"].shape, UNKNOWN_VERSION, np.int32) for tensors in segments]
    for part, versions in zip(parts, spans, strict=False):
        for span in versions:
            part[span.start : span.stop] = span.version.step
    return torch.as_tensor(np.concatenate(parts, axis=1)).to(device)


def _memory(segments: Sequence[Mapping[str, Array]], *, device: torch.device) -> Tensor:
    parts = [
        tensors.get(MEMORY, np.zeros((tensors["rewards"].shape[1], 0), np.float32)) for tensors in segments
    ]
    return torch.as_tensor(np.concatenate(parts)).to(device)


def _frames(segments: Sequence[Mapping[str, Array]], image: str, *, device: torch.device) -> Tensor:
    """The frames of all segments, one segment after the other."""
    frames = [tensors[f"{FRAMES}{image}"] for tensors in segments]
    return torch.as_tensor(frames[0].copy() if len(frames) == 1 else np.concatenate(frames)).to(device)


def _starts(segments: Sequence[Mapping[str, Array]], image: str, *, device: torch.device) -> Tensor:
    """Positions (S, N) in ``_frames``."""
    counts = [len(tensors[f"{FRAMES}{image}"]) for tensors in segments]
    firsts = np.cumsum([0, *counts[:-1]], dtype=np.int64)
    parts = [tensors[f"{STARTS}{image}"] + first for tensors, first in zip(segments, firsts, strict=True)]
    return torch.as_tensor(np.concatenate(parts, axis=1)).to(device)
