"""Gradients as records: what an actor of A3C sends in place of a segment, and the learner applies.

The record of a gradient holds one tensor for each trained parameter, ``gradients.<parameter>``, of the parameter's
shape in float32, and ``losses``, the values of ``LOSSES`` at which it was computed. Of its segment it keeps
``behavior_logprobs`` and ``valid``, from which its steps are counted. All steps were taken under one version, so that
its lag is the age of the parameters that the gradient is of.

Mnih 2016, algorithm S3.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tidegate.core.errors import RecordError
from tidegate.core.records import Array

PREFIX = "gradients."
LOSSES_TENSOR = "losses"
# Metrics of the loss, in the order of the tensor ``losses``.
LOSSES = ("loss", "policy_loss", "value_loss", "entropy")
KEPT_OF_SEGMENT = ("behavior_logprobs", "valid")


def gradient_name(parameter: str) -> str:
    """The tensor that holds the gradient of a parameter."""
    return PREFIX + parameter


def check_gradient(tensors: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]], *, name: str) -> None:
    """Check that a record is a gradient of parameters with these shapes; ``name`` is the record's in errors.

    Raises:
        RecordError: a tensor is missing, unknown, of another shape or type, or holds a value that is not finite.
    """
    expected = {gradient_name(parameter): shape for parameter, shape in shapes.items()}
    expected[LOSSES_TENSOR] = (len(LOSSES),)
    unknown = sorted(key for key in tensors if key.startswith(PREFIX) and key not in expected)
    if unknown:
        raise RecordError(f"{name} holds {unknown[0]}", why="the policy trains no such parameter")
    for tensor_name, shape in expected.items():
        tensor = tensors.get(tensor_name)
        if tensor is None:
            raise RecordError(
                f"{name} has no {tensor_name}",
                why="learner.algorithm is applied_gradients, and this record is no gradient of this policy",
                fix="set actor.engine to gradient_env",
            )
        if tuple(tensor.shape) != shape or tensor.dtype != np.float32:
            raise RecordError(
                f"{name} has {tensor_name} of shape {tuple(tensor.shape)} and type {tensor.dtype}",
                why=f"the parameter has the shape {shape} and type float32",
            )
        if not np.isfinite(tensor).all():
            raise RecordError(f"{name} has values in {tensor_name} that are not finite")
    valid = tensors.get("valid")
    if valid is None or not np.count_nonzero(valid):
        raise RecordError(f"{name} counts no steps", why="a gradient needs the tensor valid of its segment")


def mean_gradient(
    records: Sequence[Mapping[str, Array]], parameters: Sequence[str], *, weights: Sequence[float] = ()
) -> tuple[dict[str, Array], dict[str, float]]:
    """The mean over checked records, each weighted by its steps; the gradients by parameter, and ``LOSSES``.

    Each gradient is of a mean over its segment's steps, so this is the gradient of the mean over all steps.
    ``weights``: a further factor of each record, as the graded response sets it; empty for 1.
    """
    steps_R = np.array([np.count_nonzero(record["valid"]) for record in records], np.float64)
    shares_R = (steps_R / steps_R.sum()).astype(np.float32)
    factors_R = shares_R * np.asarray(weights, np.float32) if weights else shares_R

    def combined(name: str, by_R: Array) -> Array:
        return np.tensordot(by_R, np.stack([record[name] for record in records]), axes=1)

    gradients = {parameter: combined(gradient_name(parameter), factors_R) for parameter in parameters}
    losses = combined(LOSSES_TENSOR, shares_R)
    return gradients, {name: float(value) for name, value in zip(LOSSES, losses, strict=True)}
