"""The outcomes of a task that an actor started: rollouts, an end without a trajectory, or a refusal."""

from typing import Literal, TypeAlias

import msgspec

from tidegate.actor.engines.port import Rollouts
from tidegate.actor.rollouts.deadlines import CutMark
from tidegate.core.errors import TidegateError
from tidegate.core.records import DropReason, Task

EndedBy = Literal["cut", "settled", "failed"]


class RefusedTask(msgspec.Struct, frozen=True, eq=False):
    """A task that this actor cannot run, or cannot run now."""

    task: Task
    error: TidegateError


class DroppedTask(msgspec.Struct, frozen=True):
    """A task that ends without a trajectory: cut, stopped early (``settled`` in the ledger), or failed.

    ``length``: steps or tokens of its longest sample when it ended. ``num_made``: samples that were started.
    """

    task: Task
    by: EndedBy
    reason: DropReason
    detail: str
    length: int
    elapsed_s: float
    num_made: int


RolloutResult: TypeAlias = Rollouts | DroppedTask | RefusedTask


def cut_short(task: Task, mark: CutMark, *, num_made: int) -> DroppedTask:
    """A task that was cut because it would be too late."""
    return DroppedTask(
        task=task,
        by="cut",
        reason=mark.decision.reason,
        detail=f"cut at length {mark.length}: {mark.decision.detail}",
        length=mark.length,
        elapsed_s=mark.elapsed_s,
        num_made=num_made,
    )


def failed_task(task: Task, *, detail: str) -> DroppedTask:
    """A task that is not offered again; ``detail`` is what the ledger keeps as the reason."""
    return DroppedTask(
        task=task, by="failed", reason="failed", detail=detail, length=0, elapsed_s=0.0, num_made=0
    )


def stopped_early(task: Task, first_round: Rollouts) -> DroppedTask:
    """A group that needs no more samples: those of ``first_round`` were rewarded alike."""
    num_made = len(first_round.samples)
    return DroppedTask(
        task=task,
        by="settled",
        reason="settled",
        detail=f"its first {num_made} samples were rewarded alike, so the group has no advantage",
        length=max(sample.num_steps for sample in first_round.samples),
        elapsed_s=first_round.finished_at_s - first_round.started_at_s,
        num_made=num_made,
    )
