"""Several updates of one leased batch, all of one version: fewer commits, versions and pulls for the same updates.

Each update gets an equal share of the batch's whole groups, in their order. The loop, the ledger and the actors see one
batch and one version: a crash within it loses the whole version, and a commit trains all of the batch. Lag counts in
versions as ever; an update within a version is up to ``count - 1`` updates further from its data than its lag says.

Shapes: B units of replay.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.core.records import Array, Trajectory
from tidegate.core.response import FRESH, Response
from tidegate.learner.optim.gradients import mean_of
from tidegate.learner.optim.port import Trainer, TrainerState
from tidegate.learner.optim.replay_port import ReplayUnits, priorities_of
from tidegate.learner.optim.token_gaps import TokenGaps, shifted, token_gaps_of


class PreparedPart(msgspec.Struct, frozen=True, eq=False):
    """The work of one update; ``samples``: its positions in the batch."""

    work: Any
    samples: slice


class SeveralUpdates:
    """A trainer whose ``update`` is ``count`` updates of ``trainer``."""

    def __init__(self, trainer: Trainer, *, count: int) -> None:
        """``count``: updates a version; the last one of version s has the number ``s * count``."""
        self._trainer = trainer
        self._count = count
        self._priorities: NDArray[np.float32] | None = None
        self._gaps: list[TokenGaps] = []

    def prepare(self, batch: Any, /) -> list[PreparedPart]:
        """Every part as tensors, before the first of them is trained: an invalid one leaves no half of a version.

        Raises:
            RecordError: see ``optim.port.Trainer``.
        """
        return [
            PreparedPart(
                self._trainer.prepare(batch.rows(part) if isinstance(batch, ReplayUnits) else batch[part]),
                part,
            )
            for part in parts_of(batch, self._count)
        ]

    def update(
        self, batch: Sequence[PreparedPart], *, number: int, response: Response = FRESH
    ) -> dict[str, float]:
        """An update of each part; returns the mean of each metric, and how many there were as ``updates``."""
        measured: list[dict[str, float]] = []
        priorities: list[NDArray[np.float32] | None] = []
        self._gaps = []
        for index, part in enumerate(batch):
            metrics = self._trainer.update(
                part.work,
                number=(number - 1) * self._count + index + 1,
                response=_share_of(response, part.samples),
            )
            measured.append(metrics)
            priorities.append(priorities_of(self._trainer))
            self._gaps += shifted(token_gaps_of(self._trainer), by=part.samples.start)
        given = [each for each in priorities if each is not None]
        self._priorities = np.concatenate(given) if given and len(given) == len(priorities) else None
        return {**mean_of(measured), "updates": float(len(measured))}

    def priorities(self) -> NDArray[np.float32] | None:
        """See ``replay_port.ReplayTrainer``."""
        return self._priorities

    def token_gaps(self) -> list[TokenGaps]:
        """See ``token_gaps.TokenTrainer``; of the first update, as the later ones start from no version."""
        return self._gaps

    def policy(self) -> dict[str, Array]:
        """See ``optim.port.Trainer``."""
        return self._trainer.policy()

    def state(self) -> TrainerState:
        """See ``optim.port.Trainer``."""
        return self._trainer.state()

    def restore(self, policy: Mapping[str, Array], state: TrainerState) -> None:
        """See ``optim.port.Trainer``.

        Raises:
            StaleFolderError: it holds another network or another optimiser.
        """
        self._trainer.restore(policy, state)


def parts_of(batch: Sequence[Trajectory] | ReplayUnits, count: int) -> list[slice]:
    """At most ``count`` slices of a batch of about as many whole groups each, none of them empty."""
    starts = _group_starts(batch)
    num_parts = min(count, len(starts))
    bounds = [starts[part * len(starts) // num_parts] for part in range(num_parts)]
    return [slice(start, stop) for start, stop in zip(bounds, [*bounds[1:], len(batch)], strict=True)]


def _group_starts(batch: Sequence[Trajectory] | ReplayUnits) -> Sequence[int]:
    """Where each group begins; a unit of replay is one of its own."""
    if isinstance(batch, ReplayUnits):
        return range(len(batch))
    return [
        index
        for index, trajectory in enumerate(batch)
        if index == 0 or trajectory.group_id != batch[index - 1].group_id
    ]


def _share_of(response: Response, samples: slice) -> Response:
    """The response for a part: its weights, divided by their mean, as a step's size is the learning rate's."""
    if not response.weights:
        return response
    weights = response.weights[samples]
    mean = sum(weights) / len(weights)
    if mean == 0.0:
        # All of the part are thousands of versions behind the batch's freshest, where a power of the decay is 0.
        return msgspec.structs.replace(response, weights=())
    return msgspec.structs.replace(response, weights=tuple(weight / mean for weight in weights))
