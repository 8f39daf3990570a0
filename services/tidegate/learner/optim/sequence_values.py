"""The values of all actions along sequences, unrolled from stored states by way of a burn-in.

Shapes: B sequences, L steps, S = L + 1 observations, A actions, M numbers of state, Q sequences of one call, R rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidegate.algorithms.sequences import pack_rows
from tidegate.models.policy_port import MemoryPolicy


@dataclass(frozen=True, slots=True)
class _Pack:
    """Rows of one fused call: of which sequences (Q), positions in the flattened (B, S) (R), and how many a place."""

    sequences_Q: Tensor
    rows_R: Tensor
    batch_sizes: Tensor


class SequencePlan:
    """Which rows of a batch of sequences are computed, and in which order.

    First the burn-in, of those sequences that go on after it; then the trained steps and the observation after them.
    """

    def __init__(
        self,
        lengths_B: NDArray[np.int64],
        burn_ins_B: NDArray[np.int64],
        *,
        num_steps: int,
        device: torch.device,
    ) -> None:
        self.shape = len(lengths_B), num_steps + 1
        self._device = device
        goes_on_B = lengths_B > burn_ins_B
        firsts_B = np.arange(len(lengths_B)) * (num_steps + 1)
        self.burn_in = self._pack(firsts_B, np.where(goes_on_B, burn_ins_B, 0))
        self.trained = self._pack(firsts_B + burn_ins_B, np.where(goes_on_B, lengths_B - burn_ins_B + 1, 0))

    def _pack(self, firsts_B: NDArray[np.int64], lengths_B: NDArray[np.int64]) -> _Pack:
        order_B = np.argsort(-lengths_B, kind="stable")
        order_Q = order_B[: np.count_nonzero(lengths_B)]
        rows_R, batch_sizes = pack_rows(firsts_B[order_Q], lengths_B[order_Q])
        return _Pack(
            torch.as_tensor(order_Q, device=self._device),
            torch.as_tensor(rows_R, device=self._device),
            torch.as_tensor(batch_sizes),
        )


def sequence_values(
    policy: MemoryPolicy,
    params: Mapping[str, Tensor],
    plan: SequencePlan,
    observations: Mapping[str, Tensor],
    memory_BM: Tensor,
) -> Tensor:
    """Q (B, S, A) of the trained steps and of the observation after them, with its graph; 0 elsewhere.

    ``observations``: (B, S, ...) by name. ``memory_BM``: the stored states. No gradient reaches the burn-in.
    """
    flat = {name: rows.flatten(0, 1) for name, rows in observations.items()}

    def taken(rows_R: Tensor) -> dict[str, Tensor]:
        return {name: rows[rows_R] for name, rows in flat.items()}

    burn_in, trained = plan.burn_in, plan.trained
    if len(burn_in.sequences_Q):
        with torch.no_grad():
            before_QM = memory_BM[burn_in.sequences_Q]
            after_QM = policy.memory_after(
                params, taken(burn_in.rows_R), before_QM, burn_in.batch_sizes, torch
            )
            memory_BM = memory_BM.index_copy(0, burn_in.sequences_Q, after_QM)
    num_actions = policy.actions.num_outputs
    q_BSA = torch.zeros(*plan.shape, num_actions, device=memory_BM.device)
    if not len(trained.sequences_Q):
        # Where a rank has no trained step, its part of the gradient is nothing.
        return q_BSA.requires_grad_()
    found_RA, _ = policy.unrolled(
        params, taken(trained.rows_R), memory_BM[trained.sequences_Q], trained.batch_sizes, torch
    )
    return q_BSA.flatten(0, 1).index_copy(0, trained.rows_R, found_RA).view_as(q_BSA)
