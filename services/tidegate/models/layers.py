"""What every policy of segments has: initial weights, outputs that all observations share, a check of its tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidegate.core.errors import RecordError
from tidegate.core.records import Array
from tidegate.models.array_functions import ArrayModule

# Orthogonal layers keep the scale of activations through tanh and relu; a nearly uniform initial policy explores, and a
# confident one takes thousands of steps to unlearn (Andrychowicz 2021, section 3.2).
HIDDEN_GAIN: float = 2.0**0.5
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0
# Outputs of the action distribution that do not depend on the observation: a parameter of their own.
SHARED_OUTPUTS = "policy.shared_outputs"


def orthogonal(shape: tuple[int, int], rng: np.random.Generator, *, gain: float) -> NDArray[np.float32]:
    """Weights (inputs, outputs) whose rows or columns, whichever are fewer, are orthonormal times ``gain``.

    Source: Saxe 2014.
    """
    num_inputs, num_units = shape
    normal = rng.standard_normal((max(shape), min(shape)))
    basis, triangle = np.linalg.qr(normal)
    basis = basis * np.sign(np.diag(triangle))  # otherwise QR is biased towards some rotations
    return (gain * (basis if num_inputs >= num_units else basis.T)).astype(np.float32)


def with_shared_outputs(outputs: Any, params: Mapping[str, Any], xp: ArrayModule) -> Any:
    """Outputs (..., P) of a distribution from those that a network gives, with the shared ones behind, if any."""
    shared = params.get(SHARED_OUTPUTS)
    if shared is None:
        return outputs
    shared = xp.broadcast_to(shared, (*outputs.shape[:-1], shared.shape[0]))
    return xp.concatenate([outputs, shared], axis=-1)


def check_tensors(shapes: Mapping[str, tuple[int, ...]], params: Mapping[str, Array], *, policy: str) -> None:
    """Check that ``params`` are float32 tensors of these names and shapes; ``policy`` describes it in the error.

    Raises:
        RecordError: a name is missing or unknown, or a shape or dtype differs; the message names the first.
    """
    for name in sorted(shapes.keys() | params.keys()):
        if name not in params:
            problem = f"tensor {name!r} is missing"
        elif name not in shapes:
            problem = f"tensor {name!r} is unknown to it"
        elif tuple(params[name].shape) != shapes[name]:
            problem = f"tensor {name!r} has the shape {tuple(params[name].shape)}, not {shapes[name]}"
        elif params[name].dtype != np.float32:
            problem = f"tensor {name!r} is {params[name].dtype}, not float32"
        else:
            continue
        raise RecordError(
            f"These parameters do not fit {policy}: {problem}",
            why="they come from a network of another size or kind",
            fix="use the policy section that they were trained with, or start from other parameters",
        )
