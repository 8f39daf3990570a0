"""What the inference service decides, without IO: which steps are answered together and when, and which are refused."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from tidegate.core.errors import RecordError
from tidegate.core.ids import RunId
from tidegate.core.records import Array
from tidegate.wire.vector_step import ActOpening, ActStep, StepLayout

RefusalReason: TypeAlias = Literal["size", "not_finite", "order", "opening", "full"]


class RefusedError(RecordError):
    """A message of an actor that is not answered; ends its stream."""

    def __init__(self, reason: RefusalReason, what: str, *, why: str = "", fix: str = "") -> None:
        """``reason``: the label that it is counted under."""
        super().__init__(what, why=why, fix=fix)
        self.reason: RefusalReason = reason


class WaitingStep(msgspec.Struct, frozen=True):
    """A step that waits: its environments, and since when (seconds of a monotonic clock)."""

    num_rows: int
    since_s: float


class ActNow(msgspec.Struct, frozen=True):
    """Answer the first ``count`` waiting steps now."""

    count: int


class WaitForOthers(msgspec.Struct, frozen=True):
    """Another step may come before ``until_s``; decide again then, or when one comes."""

    until_s: float


class Idle(msgspec.Struct, frozen=True):
    """No step waits."""


Decision: TypeAlias = ActNow | WaitForOthers | Idle


def decide(
    waiting: Sequence[WaitingStep],
    *,
    answered_at_s: Sequence[float],
    now_s: float,
    rows_max: int,
    wait_s: float,
) -> Decision:
    """Whether to act now. ``waiting``: in order of arrival.

    ``answered_at_s``: the last answers of streams that do not wait. Such a stream is expected to ask again for
    ``wait_s`` after its answer: later it waits for something else, such as a task. A batch waits for expected streams
    only, for at most ``wait_s`` since its oldest step arrived, and never when it is full.
    """
    if not waiting:
        return Idle()
    num_rows, count = 0, 0
    for step in waiting:
        if count and num_rows + step.num_rows > rows_max:
            return ActNow(count)
        num_rows += step.num_rows
        count += 1
    if num_rows >= rows_max:
        return ActNow(count)
    last_expected_s = max((answered_s + wait_s for answered_s in answered_at_s), default=now_s)
    until_s = min(last_expected_s, waiting[0].since_s + wait_s)
    return WaitForOthers(until_s) if until_s > now_s else ActNow(count)


def check_opening(opening: ActOpening, layout: StepLayout, *, run: RunId) -> None:
    """Check that an actor belongs to this run and sends what this policy reads.

    Raises:
        RefusedError: it does not.
    """
    if opening.run_id != run:
        raise RefusedError(
            "opening", f"A stream of run {opening.run_id!r} came to run {run!r}", fix="correct the address"
        )
    if not opening.instance or opening.num_envs != layout.num_envs:
        raise RefusedError(
            "opening",
            f"A stream of {opening.instance or 'no instance'} has {opening.num_envs} environments",
            why=f"workload.num_envs is {layout.num_envs} here",
            fix="give both services the same run file",
        )
    told = (opening.observations, opening.memory_size, opening.outputs_size)
    if told != (layout.tensors, layout.memory_size, layout.outputs_size):
        raise RefusedError(
            "opening",
            f"Steps of {opening.instance} hold {_told(opening)}",
            why=f"the policy here reads {_told(layout.opening(run_id=run, instance='inference'))}",
            fix="give both services the same run file, and environment workers of one version",
        )


def _told(opening: ActOpening) -> str:
    parts = [f"{tensor.name} {tensor.dtype}{list(tensor.shape)}" for tensor in opening.observations]
    return ", ".join([*parts, f"memory [{opening.memory_size}]", f"outputs [{opening.outputs_size}]"])


class CheckedStep(msgspec.Struct, frozen=True, eq=False):
    """A step that can be answered, its tensors by name."""

    number: int
    seed: int
    observations: dict[str, Array]
    memory: Array
    since_s: float


def check_step(step: ActStep, layout: StepLayout, *, instance: str, now_s: float) -> CheckedStep:
    """A step's tensors, views of its bytes.

    Raises:
        RefusedError: it is truncated or too long, or holds a value that is not finite.
    """
    if step.number <= 0:
        raise RefusedError("order", f"A step of {instance} has the number {step.number}")
    try:
        observations, memory = layout.split(step.observations), layout.memory(step.memory)
    except RecordError as error:
        raise RefusedError("size", f"{instance}: {error.what}", why=error.why, fix=error.fix) from error
    for name, values in (*observations.items(), ("memory", memory)):
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            environments = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
            raise RefusedError(
                "not_finite",
                f"{name} of {instance} has values that are not finite, first in environment {environments[0]}",
                fix="correct the environment",
            )
    return CheckedStep(step.number, step.seed, observations, memory, now_s)
