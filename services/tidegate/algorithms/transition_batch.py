"""Transitions drawn from replay, as tensors of one learner step.

Shapes: B transitions, H steps of the longest of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tidegate.algorithms.drawn_tensors import DrawnTensor, check_drawn
from tidegate.algorithms.segments import segment_tensors
from tidegate.core.records import Array
from tidegate.core.spaces import (
    EnvironmentDescription,
    is_observation,
    observation_leaves,
    recorded_dtype,
    recorded_shape,
)

# Before the names of the observations after a transition.
NEXT = "next."


@dataclass(frozen=True, slots=True)
class TransitionBatch:
    """Transitions on the learner's device.

    ``observations`` and ``next_observations``: (B, ...) by name, before the first step and after the last one.
    ``actions_B``: (B, ...), int64 or float32, of the first step. ``rewards_BH``: of all steps, 0 past ``lengths_B``.
    ``terminated_B``: whether the last step terminated the episode, so that no value follows. ``weights_B``: of
    importance, at most 1.
    """

    observations: dict[str, Tensor]
    next_observations: dict[str, Tensor]
    actions_B: Tensor
    rewards_BH: Tensor
    lengths_B: Tensor
    terminated_B: Tensor
    weights_B: Tensor

    def __len__(self) -> int:
        return len(self.lengths_B)

    def rows(self, rows: slice | Tensor) -> "TransitionBatch":
        """Some of the transitions."""
        return TransitionBatch.of({name: tensor[rows] for name, tensor in self.named().items()})

    def named(self) -> dict[str, Tensor]:
        """Every tensor by one name."""
        return {
            **self.observations,
            **{f"{NEXT}{name}": tensor for name, tensor in self.next_observations.items()},
            "actions_B": self.actions_B,
            "rewards_BH": self.rewards_BH,
            "lengths_B": self.lengths_B,
            "terminated_B": self.terminated_B,
            "weights_B": self.weights_B,
        }

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> "TransitionBatch":
        """The batch of ``named``."""
        observations: dict[str, Tensor] = {}
        next_observations: dict[str, Tensor] = {}
        fields: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            if is_observation(name):
                observations[name] = tensor
            elif name.startswith(NEXT):
                next_observations[name.removeprefix(NEXT)] = tensor
            else:
                fields[name] = tensor
        return TransitionBatch(observations=observations, next_observations=next_observations, **fields)


def transition_tensors(description: EnvironmentDescription) -> dict[str, DrawnTensor]:
    """Every tensor of drawn transitions of this environment, by the store's names.

    Raises:
        ConfigError: its actions have several parts.
    """
    expected: dict[str, DrawnTensor] = {}
    for name, leaf in observation_leaves(description.observation_space).items():
        seen = DrawnTensor(recorded_shape(leaf), recorded_dtype(leaf))
        expected[name] = expected[f"{NEXT}{name}"] = seen
    action = segment_tensors(description)["actions"]
    expected["actions"] = DrawnTensor(action.shape, action.dtypes[0], action.nums_values)
    expected["rewards"] = DrawnTensor((None,), "float32")
    expected["lengths"] = DrawnTensor((), "int32")
    expected["terminated"] = DrawnTensor((), "bool")
    return expected


def stack_transitions(
    tensors: Mapping[str, Array],
    expected: Mapping[str, DrawnTensor],
    *,
    weights_B: NDArray[np.float32],
    device: torch.device,
) -> TransitionBatch:
    """The batch of drawn ``tensors`` (``trajectory_store.replay.windows``), checked.

    Raises:
        RecordError: a tensor is missing, has another shape or dtype, or an action is none of its space.
    """
    check_drawn(tensors, expected, num_units=len(weights_B), unit="transition")
    named = {
        name: _on_device(tensors[name], device)
        for name in expected
        if is_observation(name) or name.startswith(NEXT)
    }
    actions = _on_device(tensors["actions"], device)
    return TransitionBatch.of(
        named
        | {
            # torch selects by int64.
            "actions_B": actions if actions.is_floating_point() else actions.to(torch.int64),
            "rewards_BH": _on_device(tensors["rewards"], device),
            "lengths_B": _on_device(tensors["lengths"], device),
            "terminated_B": _on_device(tensors["terminated"], device),
            "weights_B": _on_device(weights_B, device),
        }
    )


def _on_device(array: Array, device: torch.device) -> Tensor:
    # A copy: what the store sends is read-only, and torch has no such tensors.
    return torch.tensor(array, device=device)
