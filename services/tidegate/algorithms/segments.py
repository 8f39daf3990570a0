"""Segments: fixed-length pieces of vectorised environments, as actors record them and objectives train on them.

A segment is one trajectory: ``unroll_length`` steps (T) of ``num_envs`` environments (N), whose observations have O
components. Its tensors, C-contiguous:

| name | shape | dtype | meaning |
|---|---|---|---|
| observations | (T+1, N, O) | float32 | before each step, unscaled; the last row is what followed the last step |
| actions | (T, N) | int32 | the action at t |
| behavior_logprobs | (T, N) | float32 | log μ(action at t), by the version that acted at t; at most 0 |
| rewards | (T, N) | float32 | of step t |
| terminated | (T, N) | bool or uint8 | the episode terminated at t: no bootstrap |
| truncated | (T, N) | bool or uint8 | the episode was truncated at t by a time limit: bootstrap |
| valid | (T, N) | bool or uint8 | 0 on rows that are no steps |

Where an episode ends at t, row t + 1 is no step: its observation is the last one of the episode, its action is
ignored, and the observation after it is the first of the next episode. This is Gymnasium's NEXT_STEP autoreset, and it
is why no separate final observation is needed: a truncated episode bootstraps from the observation at t + 1, which is
its own. ``valid`` is 0 exactly on those rows, also when one is the first row of a segment, so an engine carries "this
environment ended at the step before" from one segment into the next. All other values of such a row are finite and
ignored. When both flags are set, the episode terminated. Counts of steps are of valid ones.

Engines that reset within the step (SAME_STEP) write the final observation and an invalid row to get this layout.

Shapes below: T steps, N environments of all segments in a batch, S = T + 1 observations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tidegate.core.errors import RecordError
from tidegate.core.records import Array

# Every tensor of a segment: the letters of its shape, and the dtypes it may have.
SEGMENT_TENSORS: dict[str, tuple[str, tuple[type[np.generic], ...]]] = {
    "observations": ("SNO", (np.float32,)),
    "actions": ("TN", (np.int32,)),
    "behavior_logprobs": ("TN", (np.float32,)),
    "rewards": ("TN", (np.float32,)),
    "terminated": ("TN", (np.bool_, np.uint8)),
    "truncated": ("TN", (np.bool_, np.uint8)),
    "valid": ("TN", (np.bool_, np.uint8)),
}


@dataclass(frozen=True, slots=True)
class SegmentBatch:
    """Segments stacked along N, as tensors on the learner's device; actions are int64, flags bool.

    ``segment_of_N``: the segment of each environment's column.
    """

    observations_SNO: Tensor
    actions_TN: Tensor
    behavior_logprobs_TN: Tensor
    rewards_TN: Tensor
    terminated_TN: Tensor
    truncated_TN: Tensor
    valid_TN: Tensor
    segment_of_N: Tensor

    def num_steps(self) -> int:
        """The number of valid steps."""
        return int(self.valid_TN.sum())


def check_segment(
    tensors: Mapping[str, Array], *, name: str, observation_size: int, num_actions: int
) -> tuple[int, int]:
    """Check that a policy of this size can train on a segment; returns its steps and environments (T, N).

    ``name``: of the segment in errors.

    Raises:
        RecordError: a tensor is missing, has another shape or dtype, or contains an action that the policy does not
        have.
    """
    logprobs = tensors.get("behavior_logprobs")
    if logprobs is None or logprobs.ndim != 2:
        raise RecordError(f"{name} has no behavior_logprobs of shape (T, N)")
    num_steps, num_envs = (int(size) for size in logprobs.shape)
    sizes = {"S": num_steps + 1, "T": num_steps, "N": num_envs, "O": observation_size}
    for tensor_name, (letters, dtypes) in SEGMENT_TENSORS.items():
        tensor = tensors.get(tensor_name)
        expected = tuple(sizes[letter] for letter in letters)
        if tensor is None:
            raise RecordError(f"{name} has no {tensor_name}", fix="see algorithms/segments.py for the layout")
        if tuple(tensor.shape) != expected:
            raise RecordError(f"{name} has {tensor_name} of shape {tuple(tensor.shape)}, expected {expected}")
        if tensor.dtype.type not in dtypes:
            raise RecordError(
                f"{name} has {tensor_name} of type {tensor.dtype}, expected {dtypes[0].__name__}"
            )
    actions = tensors["actions"]
    if actions.size and not 0 <= int(actions.min()) <= int(actions.max()) < num_actions:
        raise RecordError(
            f"{name} has actions from {int(actions.min())} to {int(actions.max())}",
            why=f"the policy has {num_actions} actions",
        )
    return num_steps, num_envs


def stack_segments(segments: Sequence[Mapping[str, Array]], *, device: torch.device) -> SegmentBatch:
    """Stack checked segments of the same length.

    Raises:
        RecordError: there are none, or their lengths differ.
    """
    lengths = {len(tensors["rewards"]) for tensors in segments}
    if len(lengths) != 1:
        raise RecordError(
            f"A batch needs segments of one length, not of {sorted(lengths)} steps",
            fix="workload.unroll_length is the same for a whole run: start in a new run folder to change it",
        )

    def beside(name: str, dtype: torch.dtype) -> Tensor:
        joined = np.concatenate([tensors[name] for tensors in segments], axis=1)
        return torch.as_tensor(joined).to(device=device, dtype=dtype)

    return SegmentBatch(
        observations_SNO=beside("observations", torch.float32),
        actions_TN=beside("actions", torch.int64),
        behavior_logprobs_TN=beside("behavior_logprobs", torch.float32),
        rewards_TN=beside("rewards", torch.float32),
        terminated_TN=beside("terminated", torch.bool),
        truncated_TN=beside("truncated", torch.bool),
        valid_TN=beside("valid", torch.bool),
        segment_of_N=torch.arange(len(segments), device=device).repeat_interleave(
            torch.tensor([tensors["rewards"].shape[1] for tensors in segments], device=device)
        ),
    )
