"""Converts parameters to published arrays and back: float32 by name, all of them or none."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tidegate.core.errors import RecordError
from tidegate.core.records import Array


def copied_arrays(parameters: Mapping[str, Tensor]) -> dict[str, Array]:
    """A copy of the parameters as float32 arrays, independent of later training."""
    # NumPy has no bfloat16, and `numpy()` alone would share memory.
    return {name: tensor.detach().float().cpu().numpy().copy() for name, tensor in parameters.items()}


def check_fit(own: Mapping[str, Tensor], arrays: Mapping[str, Array], *, model: str) -> None:
    """Check that ``arrays`` fit ``own``, the parameters of ``model`` (a description for the error).

    Raises:
        RecordError: a name is missing or unknown, or a shape or dtype differs; the message names the first.
    """
    for name in sorted(own.keys() | arrays.keys()):
        if name not in arrays:
            problem = f"tensor {name!r} is missing"
        elif name not in own:
            problem = f"tensor {name!r} is unknown to it"
        elif tuple(arrays[name].shape) != tuple(own[name].shape):
            problem = (
                f"tensor {name!r} has the shape {tuple(arrays[name].shape)}, not {tuple(own[name].shape)}"
            )
        elif arrays[name].dtype != np.float32:
            problem = f"tensor {name!r} is {arrays[name].dtype}, not float32"
        else:
            continue
        raise RecordError(
            f"These parameters do not fit a {model}: {problem}",
            why="they come from a model of another size or kind",
            fix="use the policy section that they were trained with, or start from other parameters",
        )


@torch.no_grad()
def copy_into(own: Mapping[str, Tensor], arrays: Mapping[str, Array]) -> None:
    """Copy checked ``arrays`` into the parameters in place, in the parameters' dtype."""
    for name, tensor in own.items():
        # Arrays of a shared or memory-mapped file may be read-only, which `from_numpy` warns of.
        tensor.copy_(torch.tensor(arrays[name]))
