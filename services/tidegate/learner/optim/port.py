"""The interface between the learner's loop and a trainer."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from tidegate.core.records import Array
from tidegate.core.response import FRESH, Response


class TrainerState(msgspec.Struct, frozen=True, eq=False):
    """A trainer's state beside its policy, for an exact resume: moments, random state, counters."""

    tensors: dict[str, Array]
    values: dict[str, Any]


class Trainer(Protocol):
    """One policy and its optimiser. Used by one thread at a time."""

    def prepare(self, batch: Any, /) -> Any:
        """The batch as tensors: ``Sequence[Trajectory]``, or with replay ``replay_port.ReplayUnits``.

        Raises:
            RecordError: a trajectory lacks a tensor, or its shape does not fit the policy.
        """
        ...

    def update(self, batch: Any, *, number: int, response: Response = FRESH) -> dict[str, float]:
        """One update of the policy, the ``number``-th of its ancestry (the step of schedules); returns its metrics.

        ``response``: the graded response to the batch's lag; its weights are in the order of the trajectories.
        """
        ...

    def policy(self) -> dict[str, Array]:
        """A copy of the published parameters by name, float32."""
        ...

    def state(self) -> TrainerState:
        """A copy of all other state."""
        ...

    def restore(self, policy: Mapping[str, Array], state: TrainerState) -> None:
        """Restore a checkpoint.

        Raises:
            StaleFolderError: it holds another network or another optimiser.
        """
        ...
