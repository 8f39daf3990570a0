"""A policy of segments as the learner computes it: observations from a batch, in the learner's precision.

Shapes: B observations, P outputs of the action distribution.
"""

import contextlib
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from tidegate.algorithms.frame_stacks import observed
from tidegate.models.policy_port import SegmentPolicy

Precision = Literal["float32", "bfloat16"]
# Images of one pass without gradients: what a minibatch usually has. The residual network's largest activations are
# 0.45 MB an image in float32.
IMAGES_AT_ONCE = 256


class PolicyNetwork:
    """Outputs and values of a policy with ``params``, which change in place."""

    def __init__(
        self,
        policy: SegmentPolicy,
        params: Mapping[str, Tensor],
        *,
        precision: Precision = "float32",
        device: torch.device,
    ) -> None:
        """``precision``: of convolutions and the layer after them; parameters and heads are always float32."""
        self._policy = policy
        self._params = params
        self._device = device
        self._dtype = torch.bfloat16 if precision == "bfloat16" else None

    def outputs_and_values(
        self, observations: Mapping[str, Tensor], frames: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Outputs (B, P) and values (B,); ``observations`` (B, ...) and ``frames`` as in ``SegmentBatch``."""
        with self.in_precision():
            return self._policy.outputs_and_values(self._params, self.observed(observations, frames), torch)

    @torch.no_grad()
    def measured(self, observations: Mapping[str, Tensor], frames: Mapping[str, Tensor]) -> Tensor:
        """Outputs and, in the last column, values (B, P + 1), without gradients and with bounded memory."""
        num_rows = len(next(iter(observations.values())))
        at_once = IMAGES_AT_ONCE if frames else max(1, num_rows)
        parts: list[Tensor] = []
        # One pass of no rows keeps the shape of the result.
        for start in range(0, max(1, num_rows), at_once):
            part = {name: rows[start : start + at_once] for name, rows in observations.items()}
            outputs, values = self.outputs_and_values(part, frames)
            parts.append(torch.cat([outputs, values[:, None]], dim=1))
        return torch.cat(parts)

    def observed(self, observations: Mapping[str, Tensor], frames: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The observations in full (B, *leaf shape): images taken from their frames."""
        leaves = self._policy.observations
        return {
            name: observed(frames[name], rows, leaves[name], torch) if name in frames else rows
            for name, rows in observations.items()
        }

    def in_precision(self) -> contextlib.AbstractContextManager[object]:
        """The layers below the heads compute in ``precision`` inside of it."""
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)
