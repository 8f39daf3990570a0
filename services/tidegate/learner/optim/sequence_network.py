"""A policy with memory as the learner computes it: whole columns of a batch, unrolled from their recorded states.

Shapes: S rows, N environments of the batch, C of them that are computed, P outputs of the action distribution.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tidegate.algorithms.segment_batch import SegmentBatch
from tidegate.algorithms.sequences import pack_sequences
from tidegate.learner.optim.policy_network import IMAGES_AT_ONCE, PolicyNetwork
from tidegate.models.recurrent import RecurrentPolicy


class SequenceNetwork:
    """Outputs and values of a recurrent policy with ``params``, which change in place."""

    def __init__(self, policy: RecurrentPolicy, params: Mapping[str, Tensor], network: PolicyNetwork) -> None:
        """``network`` finds observations in a batch."""
        self._policy = policy
        self._params = params
        self._network = network

    @torch.no_grad()
    def measured(self, batch: SegmentBatch, columns_C: Tensor) -> Tensor:
        """As ``outputs``, without gradients and with bounded memory."""
        if not batch.frames:
            return self.outputs(batch, columns_C)
        at_once = max(1, IMAGES_AT_ONCE // (len(batch.valid_TN) + 1))
        # One pass of no environments keeps the shape of the result.
        starts = range(0, max(1, len(columns_C)), at_once)
        return torch.cat([self.outputs(batch, columns_C[start : start + at_once]) for start in starts], dim=1)

    def outputs(self, batch: SegmentBatch, columns_C: Tensor) -> Tensor:
        """Outputs and, in the last column, values (S, C, P + 1) of some environments, with their graph."""
        valid_TC = batch.valid_TN[:, columns_C]
        num_rows, num_columns = len(valid_TC) + 1, len(columns_C)
        if not num_columns:
            size = self._policy.actions.num_outputs + 1
            return torch.zeros((num_rows, 0, size), device=valid_TC.device)
        packed = pack_sequences(valid_TC.cpu().numpy())
        rows_R = torch.as_tensor(packed.rows_R).to(valid_TC.device)
        flat = {
            name: tensor[:, columns_C].flatten(0, 1)[rows_R] for name, tensor in batch.observations.items()
        }
        continues_Q = torch.as_tensor(packed.continues_Q).to(valid_TC.device)
        memory_QM = batch.memory_NM[columns_C][torch.as_tensor(packed.columns_Q).to(valid_TC.device)]
        with self._network.in_precision():
            outputs, values = self._policy.unrolled(
                self._params,
                self._network.observed(flat, batch.frames),
                memory_QM * continues_Q[:, None],
                torch.as_tensor(packed.batch_sizes_L),
                torch,
            )
        in_order = torch.as_tensor(np.argsort(packed.rows_R)).to(valid_TC.device)
        whole = torch.cat([outputs, values[:, None]], dim=1)[in_order]
        return whole.view(num_rows, num_columns, -1)
