"""What the learner's loop asks of a trainer: make tensors of trajectories, make one update, show and keep its state."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from tidegate.core.records import Array, Trajectory
from tidegate.core.response import FRESH, Response


class TrainerState(msgspec.Struct, frozen=True, eq=False):
    """What a trainer needs beside its policy to go on as if it had never stopped: moments, random state, counters."""

    tensors: dict[str, Array]
    values: dict[str, Any]


class Trainer(Protocol):
    """One policy and its optimiser. Used by one thread at a time."""

    def prepare(self, trajectories: Sequence[Trajectory]) -> Any:
        """The batch as tensors.

        Raises:
            RecordError: a trajectory lacks a tensor, or its shape fits no policy of this kind.
        """
        ...

    def update(self, batch: Any, *, number: int, response: Response = FRESH) -> dict[str, float]:
        """One update of the policy: the ``number``-th of its ancestry, which schedules go by; what it measured.

        ``response``: what is done about the batch's lag; its weights are in the order of the prepared trajectories.
        """
        ...

    def policy(self) -> dict[str, Array]:
        """A copy of the parameters by name, float32: what is published."""
        ...

    def state(self) -> TrainerState:
        """A copy of everything else."""
        ...

    def restore(self, policy: Mapping[str, Array], state: TrainerState) -> None:
        """Go on from a checkpoint.

        Raises:
            StaleFolderError: it holds another network or another optimiser.
        """
        ...
