"""The edge: what a well-formed trajectory must hold before anybody may train on it.

A frame that decodes can still lie: NaN logprobs, probabilities above one, spans that leave steps without a version.
Such a record is refused here with its reason, counted, and kept in QUARANTINE; nothing else is lost.
"""

import numpy as np

from tidegate.core.errors import RecordError
from tidegate.core.records import Trajectory

# Rounding of float32 log-softmax stays below this.
LOGPROB_TOLERANCE = 1e-3


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
    _validate_spans(trajectory, name)
    logprobs = trajectory.tensors.get("behavior_logprobs")
    if logprobs is None:
        raise RecordError(
            f"{name} carries no behavior_logprobs", why="without them nothing can correct for its age"
        )
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
    if trajectory.reward is not None and not np.isfinite(trajectory.reward):
        raise RecordError(f"{name} has the reward {trajectory.reward}")


def _validate_spans(trajectory: Trajectory, name: str) -> None:
    position = 0
    for span in trajectory.spans:
        if span.start != position or span.stop <= span.start or not span.version.lineage:
            raise RecordError(
                f"{name} has version spans that do not cover its steps in order",
                why=f"a span [{span.start}, {span.stop}) of {span.version} follows position {position}",
            )
        position = span.stop
    logprobs = trajectory.tensors.get("behavior_logprobs")
    if logprobs is not None and position != len(logprobs):
        raise RecordError(f"{name} has versions for {position} positions and logprobs for {len(logprobs)}")
