"""The edge: what a well-formed trajectory must hold before anybody may train on it.

A frame that decodes can still lie: NaN logprobs, probabilities above one, spans that leave steps without a version.
Such a record is refused here with its reason, counted, and kept in QUARANTINE; nothing else is lost.
"""

import math

import numpy as np

from tidegate.core.errors import RecordError
from tidegate.core.records import Array, Trajectory

# Rounding of float32 log-softmax stays below this.
LOGPROB_TOLERANCE = 1e-3
# Tensors with one entry a step and environment, or one a token, like the logprobs; they may have further dimensions.
PER_POSITION = ("actions", "rewards", "terminated", "truncated", "valid", "tokens", "values")


def validate_trajectory(trajectory: Trajectory, *, run_id: str) -> None:
    """Check one trajectory's identity, versions, logprobs and reward.

    Raises:
        RecordError: the record could not come from a policy of this run; the message says which field and why.
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
    if not np.isfinite(logprobs).all() or (logprobs.size and float(logprobs.max()) > LOGPROB_TOLERANCE):
        raise RecordError(
            f"{name} has behavior_logprobs that no policy can produce",
            why="they are not finite, or above zero",
            fix="check the actor's engine; the record is kept in QUARANTINE",
        )
    for tensor_name in ("rewards", "observations"):
        tensor = trajectory.tensors.get(tensor_name)
        if tensor is not None and not np.isfinite(tensor).all():
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
    observations = tensors.get("observations")
    # One observation more than steps: the last one bootstraps.
    leading = (leading[0] + 1, *leading[1:])
    if observations is not None and observations.shape[: len(leading)] != leading:
        raise _shape_error(name, "observations", observations, leading)


def _shape_error(name: str, tensor_name: str, tensor: Array, leading: tuple[int, ...]) -> RecordError:
    return RecordError(
        f"{name} has {tensor_name} of shape {tensor.shape}, it must begin with {leading}",
        why="its behavior_logprobs say how many positions there are",
    )
