"""Updates that leave the trainer as it was, and name trajectories, when they are not finite.

A copy of the trainer's state is taken before each update, beside the published parameters that the loop has anyway. A
state too large for that is not copied: no trainer takes an optimiser step along a gradient that is not finite
(``optim.gradients``), so an update of one step leaves it as it was; an update that had taken a step before cannot be
undone, and ends the learner. All of it runs in the trainer's thread.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec
import numpy as np

from tidegate.core.errors import TidegateError
from tidegate.core.ids import TrajectoryId
from tidegate.core.records import Array, Trajectory
from tidegate.core.response import Response
from tidegate.learner.culprits import Culprit, extreme_value, search
from tidegate.learner.optim.gradients import not_finite
from tidegate.learner.optim.port import Trainer, TrainerState
from tidegate.learner.optim.replay_port import ReplayUnits
from tidegate.models.finite import all_finite

# About 10 ms a copy. Adam's moments of eight million parameters.
COPIED_BYTES_MAX = 64 << 20
# Adam's of each parameter, of which a trainer's state consists at least.
MOMENTS = 2


class PoisonedBatch(msgspec.Struct, frozen=True):
    """An update that was undone, and what must be dropped; ``why`` names the metrics that were not finite."""

    why: str
    culprits: tuple[Culprit, ...]


class _Part(msgspec.Struct, frozen=True, eq=False):
    """A group of trajectories, or one of replay: its positions among the batch's samples."""

    samples: tuple[int, ...]


class GuardedTrainer:
    """Updates of one trainer."""

    def __init__(self, trainer: Trainer) -> None:
        """``trainer``: updated only here."""
        self._trainer = trainer
        self._copies: bool | None = None

    def update(
        self,
        work: Any,
        parts: Callable[[], Sequence[tuple[TrajectoryId, Any]]],
        *,
        policy: Mapping[str, Array],
        number: int,
        response: Response,
    ) -> dict[str, float] | PoisonedBatch:
        """The metrics of an update of ``work``; or who must be dropped, and the trainer is as it was before.

        ``parts``: gives the work of each trajectory alone. ``policy``: the trainer's parameters before the update.

        Raises:
            RecordError: a trajectory does not fit the policy.
            TidegateError: the update is not finite, and no trajectory is the reason, or it cannot be undone.
        """
        before = self._copied_state(policy)
        metrics = self._try(work, number=number, response=response)
        wrong = not_finite(metrics)
        if not wrong:
            return metrics
        why = f"Update {number} is not finite: {', '.join(wrong)}"
        state = self._undo(policy, before, why=why)
        culprits = self._culprits(
            work, parts(), policy=policy, state=state, number=number, response=response, why=why
        )
        return PoisonedBatch(why, culprits)

    def _try(self, work: Any, *, number: int, response: Response) -> dict[str, float]:
        # What overflows is reported by the metrics.
        with np.errstate(all="ignore"):
            return self._trainer.update(self._trainer.prepare(work), number=number, response=response)

    def _copied_state(self, policy: Mapping[str, Array]) -> TrainerState | None:
        if (
            self._copies is None
            and MOMENTS * sum(array.nbytes for array in policy.values()) > COPIED_BYTES_MAX
        ):
            # Known without a copy, which of a large model takes minutes and its memory once more.
            self._copies = False
        if self._copies is False:
            return None
        state = self._trainer.state()
        if self._copies is None:
            self._copies = sum(tensor.nbytes for tensor in state.tensors.values()) <= COPIED_BYTES_MAX
        return state

    def _undo(self, policy: Mapping[str, Array], before: TrainerState | None, *, why: str) -> TrainerState:
        """Put the trainer back; returns its state as it was."""
        if before is not None:
            self._trainer.restore(policy, before)
            return before
        now = self._trainer.policy()
        if any(not np.array_equal(now[name], array) for name, array in policy.items()):
            raise TidegateError(
                why,
                why="steps of the same update were taken before, and the state is too large to keep a copy of it",
                fix="lower the learning rate; the learner resumes from its last checkpoint",
            )
        return self._trainer.state()

    def _culprits(
        self,
        work: Any,
        parts: Sequence[tuple[TrajectoryId, Any]],
        *,
        policy: Mapping[str, Array],
        state: TrainerState,
        number: int,
        response: Response,
        why: str,
    ) -> tuple[Culprit, ...]:
        if not all(all_finite(array) for array in policy.values() if array.dtype.kind == "f"):
            raise TidegateError(
                why,
                why="the parameters themselves are not finite: no trajectory is the reason",
                fix="lower the learning rate; the learner resumes from its last checkpoint",
            )
        groups = _groups(work, parts)

        def is_finite(positions: Sequence[int]) -> bool:
            samples = sorted(sample for position in positions for sample in groups[position].samples)
            try:
                metrics = self._try(
                    _samples_of(work, samples), number=number, response=_response_of(response, samples)
                )
            finally:
                self._trainer.restore(policy, state)
            return not not_finite(metrics)

        found = search(len(groups), is_finite)
        named = [_worst(work, parts, groups[position]) for position in found]
        if not found or 2 * len(found) > len(groups):
            # The rest is no proof that the others are sound: only what is far beyond any scale is a reason by itself.
            named = [
                culprit for group in groups if (culprit := _worst(work, parts, group)).found.is_suspicious
            ]
        if not named:
            raise TidegateError(
                why,
                why="the learning rate is too high, or rewards or values are out of scale: no single trajectory is the"
                " reason",
                fix="lower the learning rate; the learner resumes from its last checkpoint",
            )
        return tuple(named)


def _groups(work: Any, parts: Sequence[tuple[TrajectoryId, Any]]) -> list[_Part]:
    """Whole groups in the order of a batch; of replay each trajectory, with the places of its units."""
    if isinstance(work, ReplayUnits):
        places: dict[int, int] = {}
        rows: list[list[int]] = [[] for _ in parts]
        for row, (_, units) in enumerate(parts):
            for unit in units.ids_B.tolist():
                places.setdefault(unit, row)
        for sample, unit in enumerate(work.ids_B.tolist()):
            rows[places[unit]].append(sample)
        return [_Part(tuple(samples)) for samples in rows]
    trajectories: Sequence[Trajectory] = work
    numbered = enumerate(trajectories)
    return [
        _Part(tuple(index for index, _ in members))
        for _, members in groupby(numbered, key=lambda item: item[1].group_id)
    ]


def _samples_of(work: Any, samples: Sequence[int]) -> Any:
    if isinstance(work, ReplayUnits):
        mask_B = np.zeros(len(work), np.bool_)
        mask_B[list(samples)] = True
        return work.rows(mask_B)
    return [work[sample] for sample in samples]


def _response_of(response: Response, samples: Sequence[int]) -> Response:
    if not response.weights:
        return response
    return msgspec.structs.replace(response, weights=tuple(response.weights[sample] for sample in samples))


def _worst(work: Any, parts: Sequence[tuple[TrajectoryId, Any]], group: _Part) -> Culprit:
    """The trajectory of a group with the most extreme value."""
    if isinstance(work, ReplayUnits):
        units = _samples_of(work, group.samples)
        name = next(name for name, part in parts if part.ids_B[0] == units.ids_B[0])
        return Culprit(name, "", extreme_value(units.tensors))
    members: list[Trajectory] = [work[sample] for sample in group.samples]
    culprits = [
        Culprit(item.trajectory_id, item.actor_id, extreme_value(item.tensors, reward=item.reward))
        for item in members
    ]
    return max(culprits, key=lambda culprit: _magnitude(culprit.found.value))


def _magnitude(value: float) -> float:
    return math.inf if math.isnan(value) else abs(value)
