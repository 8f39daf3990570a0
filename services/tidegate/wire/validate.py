"""Validation of trajectories at the edge, before anything trains on them.

A frame that decodes can still be wrong: NaN logprobs, probabilities above one, spans that leave steps without a
version. Such a record is refused here with its reason, counted, and kept in QUARANTINE; other records are not affected.
"""

import math
from functools import lru_cache
from itertools import cycle
from typing import Any

import msgspec
import numpy as np

from tidegate.core.errors import RecordError
from tidegate.core.ids import RunId
from tidegate.core.records import Array, Trajectory
from tidegate.core.spaces import is_observation
from tidegate.wire.columns import RecordColumns, SpanRow
from tidegate.wire.frame import Frame
from tidegate.wire.layout import ALIGNMENT_BYTES, LAYOUTS_MAX, Layout, Place, spread

# Rounding of float32 log-softmax stays below this.
LOGPROB_TOLERANCE = 1e-3
# Tensors with one entry a step and environment, or one a token, like the logprobs; they may have further dimensions.
PER_POSITION = ("actions", "rewards", "terminated", "truncated", "valid", "tokens", "values", "chosen")
# Tensors that must be finite where they hold floats, besides the logprobs and observations.
FINITE = ("rewards", "actions", "memory")


def validate_frame(frame: Frame, *, run_id: str) -> None:
    """Check every record of a frame as ``validate_trajectory`` does.

    Records are checked one by one only when their shared columns are invalid, to name the invalid record.

    Raises:
        RecordError: as ``validate_trajectory``.
    """
    if not _is_sound(frame, run_id):
        for trajectory in frame.trajectories():
            validate_trajectory(trajectory, run_id=run_id)


def _is_sound(frame: Frame, run_id: str) -> bool:
    """Whether the columns alone prove every record valid; False proves nothing."""
    columns = frame.columns
    times = columns.started_at_s + columns.finished_at_s
    scalars = [episode[0] for episodes in columns.episodes for episode in episodes]
    scalars += [reward for reward in columns.reward if reward is not None]
    return (
        columns.run_id.count(RunId(run_id)) == len(columns.run_id)
        and "" not in columns.task_id
        and "" not in columns.group_id
        and min(columns.group_size) > 0
        and min(columns.num_steps) >= 0
        and all(map(math.isfinite, times))
        and all(map(math.isfinite, scalars))
        and _are_samples(columns)
        and _are_tensors_sound(frame, [_num_covered(spans) for spans in columns.spans])
    )


def _are_samples(columns: RecordColumns) -> bool:
    """Whether every record is named after its task."""
    prefixes = cycle([f"{task_id}." for task_id in columns.task_id])
    return all(map(str.startswith, columns.trajectory_id, prefixes))


def _num_covered(spans: tuple[SpanRow, ...]) -> int:
    """Positions that the spans cover in order, from the first; -1 when they do not."""
    position = 0
    for lineage, step, start, stop in spans:
        if start != position or stop <= start or not lineage or step < 0:
            return -1
        position = stop
    return position


class _Expected(msgspec.Struct, frozen=True, eq=False):
    """The requirements that a layout implies for its frames.

    ``rows``: positions of each record, one number when all have as many. ``are_densities``: logprobs are of continuous
    actions, whose densities may be above 1. ``finite``: places that must be finite,
    adjacent ones joined.
    """

    rows: list[int]
    logprobs: Place
    are_densities: bool
    chosen: Place | None
    finite: list[Place]


@lru_cache(maxsize=LAYOUTS_MAX)
def _expected(layout: Layout) -> _Expected | None:
    """None when its tensors do not fit their logprobs, or need a check one by one."""
    places = {place.name: place for place in layout.places}
    logprobs = places.get("behavior_logprobs")
    # Tensors of one name that differ in their rows' shape are checked one by one.
    if logprobs is None or logprobs.rows is None or len(places) != len(layout.places):
        return None
    rows, leading = logprobs.rows, logprobs.shape[1:]
    if min(rows) <= 0:
        return None
    for name, place in places.items():
        if place.records is not None:
            return None
        if name in PER_POSITION:
            expected = rows
        elif is_observation(name):
            expected = [count + 1 for count in rows]
        else:
            continue
        if place.rows != expected or place.shape[1 : 1 + len(leading)] != leading:
            return None
    finite = [
        place for name, place in places.items() if name == logprobs.name or _is_checked(name, place.dtype)
    ]
    actions = places.get("actions")
    return _Expected(
        rows=rows,
        logprobs=logprobs,
        are_densities=actions is not None and actions.dtype.kind == "f",
        chosen=places.get("chosen"),
        finite=_joined(finite),
    )


def _is_checked(name: str, dtype: np.dtype[Any]) -> bool:
    """Whether a tensor must be finite: integers always are."""
    return dtype.kind == "f" and (name in FINITE or is_observation(name))


def _joined(places: list[Place]) -> list[Place]:
    """The same values in fewer places, because checking a place costs as much as some thousand values.

    Padding between neighbours is checked with them: if it is not finite, the records are checked one by one.
    """
    joined: list[Place] = []
    for place in places:
        together = _together(joined[-1], place) if joined else None
        if together is None:
            joined.append(place)
        else:
            joined[-1] = together
    return joined


def _together(first: Place, second: Place) -> Place | None:
    """Two places with only padding between them, joined; None if anything else is between them, or in a block."""
    if first.stored_bytes is not None or second.stored_bytes is not None:
        return None
    itemsize = first.dtype.itemsize
    behind = first.offset + math.prod(first.shape) * itemsize
    distance = second.offset - first.offset
    is_next = behind <= second.offset < behind + ALIGNMENT_BYTES and not distance % itemsize
    if second.dtype != first.dtype or not is_next:
        return None
    length = distance // itemsize + math.prod(second.shape)
    return msgspec.structs.replace(first, shape=(length,), rows=[length])


def _are_tensors_sound(frame: Frame, num_covered: list[int]) -> bool:
    expected = _expected(frame.layout)
    if expected is None:
        return False
    rows, payload = expected.rows, frame.payload
    if num_covered != rows and num_covered != spread(rows, len(num_covered)):
        return False
    logprobs = expected.logprobs.values(payload)
    if expected.chosen is not None and not _are_choices(
        expected.chosen.values(payload), logprobs, spread(rows, len(frame.columns)), frame.columns.num_steps
    ):
        return False
    return all(_is_finite(place.values(payload)) for place in expected.finite) and (
        expected.are_densities
        or not logprobs.size
        or bool(np.maximum.reduce(logprobs, axis=None) <= LOGPROB_TOLERANCE)
    )


def _are_choices(chosen: Array, logprobs: Array, rows: list[int], num_steps: list[int]) -> bool:
    """Whether ``chosen`` marks each token as chosen by the policy or not, as many as each record counts, at least one.

    Tokens between two turns come from the environment and have no logprob.
    """
    if chosen.dtype != np.bool_ or chosen.shape != logprobs.shape or chosen.ndim != 1:
        return False
    starts = np.cumsum([0, *rows[:-1]])
    counts: list[int] = np.add.reduceat(chosen, starts, dtype=np.int64).tolist()
    return min(counts) > 0 and counts == spread(num_steps, len(rows)) and not logprobs[~chosen].any()


def _is_finite(values: Array) -> bool:
    # Searching for a False costs half as much as a reduction, on a small segment.
    return b"\0" not in np.isfinite(values).tobytes()


def validate_trajectory(trajectory: Trajectory, *, run_id: str) -> None:
    """Check one trajectory's identity, versions, logprobs and reward.

    Raises:
        RecordError: the record could not come from a policy of this run; the message names the field and the reason.
    """
    name = f"Trajectory {trajectory.trajectory_id!r}"
    if trajectory.run_id != run_id:
        raise RecordError(f"{name} belongs to run {trajectory.run_id!r}, this is {run_id!r}")
    if not trajectory.task_id or not trajectory.trajectory_id.startswith(f"{trajectory.task_id}."):
        raise RecordError(f"{name} is not a sample of its task {trajectory.task_id!r}")
    if not trajectory.group_size > 0 or not trajectory.group_id:
        raise RecordError(f"{name} has no group")
    if trajectory.num_steps < 0 or not (
        math.isfinite(trajectory.started_at_s) and math.isfinite(trajectory.finished_at_s)
    ):
        raise RecordError(f"{name} has no valid step count or times", why="its age could not be judged")
    logprobs = trajectory.tensors.get("behavior_logprobs")
    if logprobs is None:
        raise RecordError(
            f"{name} carries no behavior_logprobs", why="without them nothing can correct for its age"
        )
    _validate_spans(trajectory, logprobs, name)
    _validate_shapes(trajectory, logprobs, name)
    actions = trajectory.tensors.get("actions")
    are_densities = actions is not None and actions.dtype.kind == "f"
    is_too_likely = logprobs.size and not are_densities and float(logprobs.max()) > LOGPROB_TOLERANCE
    if not np.isfinite(logprobs).all() or is_too_likely:
        raise RecordError(
            f"{name} has behavior_logprobs that no policy can produce",
            why="they are not finite, or above zero",
            fix="check the actor's engine; the record is kept in QUARANTINE",
        )
    chosen = trajectory.tensors.get("chosen")
    if chosen is not None and not _are_choices(chosen, logprobs, [len(logprobs)], [trajectory.num_steps]):
        raise RecordError(
            f"{name} does not mark which of its tokens the policy chose",
            why=f"chosen must be a bool a token, {trajectory.num_steps} of them true, the others without logprob",
        )
    for tensor_name, tensor in trajectory.tensors.items():
        if _is_checked(tensor_name, tensor.dtype) and not np.isfinite(tensor).all():
            raise RecordError(f"{name} has values in {tensor_name} that are not finite")
    scalars = [episode.episode_return for episode in trajectory.episodes]
    if trajectory.reward is not None:
        scalars.append(trajectory.reward)
    if not all(math.isfinite(value) for value in scalars):
        raise RecordError(f"{name} has a reward or an episode's return that is not finite")


def _validate_spans(trajectory: Trajectory, logprobs: Array, name: str) -> None:
    position = 0
    for span in trajectory.spans:
        if (
            span.start != position
            or span.stop <= span.start
            or not span.version.lineage
            or span.version.step < 0
        ):
            raise RecordError(
                f"{name} has version spans that do not cover its steps in order",
                why=f"a span [{span.start}, {span.stop}) of {span.version} follows position {position}",
            )
        position = span.stop
    if logprobs.ndim == 0 or position == 0 or position != len(logprobs):
        raise RecordError(
            f"{name} has versions for {position} positions and logprobs of shape {logprobs.shape}",
            why="every position needs both, and there must be one",
        )


def _validate_shapes(trajectory: Trajectory, logprobs: Array, name: str) -> None:
    tensors, leading = trajectory.tensors, logprobs.shape
    for tensor_name in PER_POSITION:
        tensor = tensors.get(tensor_name)
        if tensor is not None and tensor.shape[: len(leading)] != leading:
            raise _shape_error(name, tensor_name, tensor, leading)
    # One observation more than steps: the last one bootstraps.
    leading = (leading[0] + 1, *leading[1:])
    for tensor_name, tensor in tensors.items():
        if is_observation(tensor_name) and tensor.shape[: len(leading)] != leading:
            raise _shape_error(name, tensor_name, tensor, leading)


def _shape_error(name: str, tensor_name: str, tensor: Array, leading: tuple[int, ...]) -> RecordError:
    return RecordError(
        f"{name} has {tensor_name} of shape {tensor.shape}, it must begin with {leading}",
        why="its behavior_logprobs determine the number of positions",
    )
