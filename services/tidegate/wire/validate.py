"""Validation of trajectories and tasks at the edge, before anything trains on them.

A frame that decodes can still be wrong: NaN logprobs, probabilities above one, a reward whose sum float32 cannot hold,
spans that leave steps without a version. The bounds are those of ``wire.bounds``. Such a record is refused here with
its reason, counted, and kept in QUARANTINE; other records are not affected.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import cycle

import msgspec
import numpy as np

from tidegate.core.conversations import CONVERSATIONS, conversations_of
from tidegate.core.errors import RecordError
from tidegate.core.records import Array, Task, Trajectory
from tidegate.core.spaces import is_observation
from tidegate.wire.bounds import (
    GROUP_SIZE_MAX,
    INT32_MAX,
    KEY_BYTES,
    MAGNITUDE_MAX,
    SEED_MAX,
    STEP_MAX,
    TEMPERATURE_MAX,
    TIME_S_MAX,
    UNROLL_MAX,
    are_summable,
    are_within,
    check_number,
    check_token,
    check_version,
    is_id,
    is_lineage,
    is_summable,
    is_time,
    is_trace_parent,
    match_id,
    match_lineage,
    match_trace_parent,
    shown,
)
from tidegate.wire.columns import RecordColumns, SpanRow
from tidegate.wire.frame import Frame
from tidegate.wire.layout import ALIGNMENT_BYTES, LAYOUTS_MAX, Layout, Place, spread

# Rounding of float32 log-softmax stays below this.
LOGPROB_TOLERANCE = 1e-3
# Tensors with one entry a step and environment, or one a token, like the logprobs; they may have further dimensions.
PER_POSITION = ("actions", "rewards", "terminated", "truncated", "valid", "tokens", "values", "chosen")

# What conversations divide, both flat.
_DIVIDED = ("prompt_tokens", "tokens")


def validate_frame(frame: Frame, *, run_id: str) -> None:
    """Check every record of a frame as ``validate_trajectory`` does.

    Records are checked one by one only when their shared columns are invalid, to name the invalid record.

    Raises:
        RecordError: as ``validate_trajectory``.
    """
    if not are_sound([frame], run_id=run_id):
        for trajectory in frame.trajectories():
            validate_trajectory(trajectory, run_id=run_id)


def are_sound(frames: Sequence[Frame], *, run_id: str) -> bool:
    """Whether their columns alone prove every record of some frames valid; False proves nothing.

    Of many frames at once, because a check of a column costs as much as some of its values.
    """
    runs: list[str] = []
    ids: list[str] = []
    trace_parents: list[str] = []
    group_sizes: list[int] = []
    num_steps: list[int] = []
    times: list[float] = []
    scalars: list[float] = []
    for frame in frames:
        columns = frame.columns
        runs += columns.run_id
        ids += columns.task_id
        ids += columns.group_id
        ids += columns.trajectory_id
        trace_parents += columns.trace_parent
        group_sizes += columns.group_size
        num_steps += columns.num_steps
        times += columns.started_at_s
        times += columns.finished_at_s
        times += [time_s for stages in columns.stages for stage in stages for time_s in stage[2:]]
        scalars += [episode[0] for episodes in columns.episodes for episode in episodes]
        scalars += [reward for reward in columns.reward if reward is not None]
    return (
        runs.count(run_id) == len(runs)
        and all(map(match_id, ids))
        and all(map(match_trace_parent, trace_parents))
        and 0 < min(group_sizes) <= max(group_sizes) <= GROUP_SIZE_MAX
        and 0 <= min(num_steps) <= max(num_steps) <= STEP_MAX
        and are_within(times, TIME_S_MAX)
        and are_within(scalars, MAGNITUDE_MAX)
        and all(_are_samples(frame.columns) for frame in frames)
        and all(_are_tensors_sound(frame, list(map(_num_covered, frame.columns.spans))) for frame in frames)
    )


def _are_samples(columns: RecordColumns) -> bool:
    """Whether every record is named after its task."""
    prefixes = cycle([f"{task_id}." for task_id in columns.task_id])
    return all(map(str.startswith, columns.trajectory_id, prefixes))


def _num_covered(spans: tuple[SpanRow, ...]) -> int:
    """Positions that the spans cover in order, from the first; -1 when they do not."""
    position = 0
    for lineage, step, start, stop in spans:
        if start != position or stop <= start or not match_lineage(lineage) or not 0 <= step <= STEP_MAX:
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
    if CONVERSATIONS in places:
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
    finite = [place for place in places.values() if place.dtype.kind == "f"]
    actions = places.get("actions")
    return _Expected(
        rows=rows,
        logprobs=logprobs,
        are_densities=actions is not None and actions.dtype.kind == "f",
        chosen=places.get("chosen"),
        finite=_joined(finite),
    )


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
    return all(are_summable(place.values(payload)) for place in expected.finite) and (
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


def validate_task(task: Task) -> None:
    """Refuse a task that no queue publishes: its id names a subject, its numbers size what an actor allocates.

    Raises:
        RecordError: the id, the version or a number is out of range.
    """
    what = f"Task {shown(task.task_id)}"
    check_token(task.task_id, "Task")
    check_version(task.required_version, f"the version that {what} requires")
    check_number(task.num_samples, f"num_samples of {what}", least=1, most=GROUP_SIZE_MAX)
    check_number(task.attempt, f"attempt of {what}", least=0, most=INT32_MAX)
    check_number(task.seed, f"seed of {what}", least=0, most=SEED_MAX)
    check_number(task.unroll_length, f"unroll_length of {what}", least=0, most=UNROLL_MAX)
    check_number(task.admitted_at_s, f"admitted_at_s of {what}", least=-TIME_S_MAX, most=TIME_S_MAX)
    sampler = task.sampler
    check_number(sampler.temperature, f"temperature of {what}", least=0.0, most=TEMPERATURE_MAX)
    check_number(sampler.top_p, f"top_p of {what}", least=0.0, most=1.0)
    check_number(sampler.top_k, f"top_k of {what}", least=-1, most=INT32_MAX)
    check_number(sampler.max_new_tokens, f"max_new_tokens of {what}", least=0, most=INT32_MAX)
    if len(task.key) not in (0, KEY_BYTES):
        raise RecordError(f"{what} has a key of {len(task.key)} bytes", fix=f"send {KEY_BYTES}, or none")
    if not is_trace_parent(task.trace_parent):
        raise RecordError(f"{what} has the trace context {shown(task.trace_parent)}")


def validate_trajectory(trajectory: Trajectory, *, run_id: str) -> None:
    """Check one trajectory's identity, versions, logprobs and reward.

    Raises:
        RecordError: the record could not come from a policy of this run; the message names the field and the reason.
    """
    name = f"Trajectory {shown(trajectory.trajectory_id)}"
    if trajectory.run_id != run_id:
        raise RecordError(f"{name} belongs to run {trajectory.run_id!r}, this is {run_id!r}")
    ids = (trajectory.task_id, trajectory.trajectory_id)
    if not all(map(is_id, ids)) or not trajectory.trajectory_id.startswith(f"{trajectory.task_id}."):
        raise RecordError(f"{name} is not a sample of its task {shown(trajectory.task_id)}")
    if not 0 < trajectory.group_size <= GROUP_SIZE_MAX or not is_id(trajectory.group_id):
        raise RecordError(f"{name} has no group", why=f"its group has {trajectory.group_size} samples")
    if not is_trace_parent(trajectory.trace_parent):
        raise RecordError(f"{name} has the trace context {shown(trajectory.trace_parent)}")
    times = [trajectory.started_at_s, trajectory.finished_at_s]
    times += [time_s for stage in trajectory.stages for time_s in (stage.started_at_s, stage.finished_at_s)]
    if not 0 <= trajectory.num_steps <= STEP_MAX or not all(map(is_time, times)):
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
    if CONVERSATIONS in trajectory.tensors:
        _validate_conversations(trajectory, name)
    for tensor_name, tensor in trajectory.tensors.items():
        if tensor.dtype.kind == "f" and not are_summable(tensor):
            raise RecordError(
                f"{name} has {_culprit(tensor)} in {tensor_name}",
                why=f"a learner computes in float32: values must be finite and below {MAGNITUDE_MAX:g}",
            )
    scalars = [episode.episode_return for episode in trajectory.episodes]
    if trajectory.reward is not None:
        scalars.append(trajectory.reward)
    for value in scalars:
        if not is_summable(value):
            raise RecordError(
                f"{name} has {value} as its reward or an episode's return",
                why=f"a learner computes in float32: it must be finite and below {MAGNITUDE_MAX:g}",
            )


def _validate_conversations(trajectory: Trajectory, name: str) -> None:
    tensors = trajectory.tensors
    if any(tensor_name not in tensors or tensors[tensor_name].ndim != 1 for tensor_name in _DIVIDED):
        raise RecordError(
            f"{name} has conversations", why=f"they divide {' and '.join(_DIVIDED)}, which it lacks"
        )
    try:
        conversations_of(tensors)
    except RecordError as error:
        raise RecordError(f"{name}: {error.what}", why=error.why) from error


def _culprit(values: Array) -> float:
    """The first value that is not summable."""
    return next(value for value in values.flat if not is_summable(float(value)))


def _validate_spans(trajectory: Trajectory, logprobs: Array, name: str) -> None:
    position = 0
    for span in trajectory.spans:
        if (
            span.start != position
            or span.stop <= span.start
            or not is_lineage(span.version.lineage)
            or not 0 <= span.version.step <= STEP_MAX
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
