"""An optimiser's moments and a generator's state as named arrays, and back."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from tidegate.core.errors import StaleFolderError
from tidegate.core.records import Array

GENERATOR = "generator"
_MOMENT = "optimizer"


def optimizer_arrays(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, Array]:
    """A copy of what the optimiser keeps of each parameter, by ``optimizer/<parameter>/<moment>``."""
    arrays: dict[str, Array] = {}
    for name, parameter in parameters.items():
        kept = cast("dict[str, Tensor]", optimizer.state.get(parameter, {}))
        for moment, value in kept.items():
            arrays[f"{_MOMENT}/{name}/{moment}"] = value.detach().cpu().numpy().copy()
    return arrays


def load_optimizer_arrays(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor], arrays: Mapping[str, Array]
) -> None:
    """Give the optimiser back what ``optimizer_arrays`` copied.

    Raises:
        StaleFolderError: they belong to other parameters.
    """
    kept: dict[str, dict[str, Tensor]] = {}
    for key, value in arrays.items():
        if not key.startswith(f"{_MOMENT}/"):
            continue
        name, moment = key[len(_MOMENT) + 1 :].rsplit("/", 1)
        parameter = parameters.get(name)
        if parameter is None or (value.ndim and value.shape != tuple(parameter.shape)):
            raise StaleFolderError(
                f"The checkpoint holds {moment} of a parameter {name!r} of shape {value.shape}",
                why="it was trained with another network",
                fix="give the run file its own policy section back, or start in a new run folder",
            )
        restored = torch.tensor(value, device=parameter.device)
        # Fused kernels walk a parameter and its moments side by side in memory: their strides must agree.
        kept.setdefault(name, {})[moment] = (
            torch.empty_like(parameter, requires_grad=False).copy_(restored) if value.ndim else restored
        )
    if kept and kept.keys() != parameters.keys():
        raise StaleFolderError(
            "The checkpoint holds the optimiser of another network",
            why=f"it knows {len(kept)} parameters, the network has {len(parameters)}",
            fix="give the run file its own policy section back, or start in a new run folder",
        )
    state = cast("dict[Tensor, Any]", optimizer.state)
    for name, moments in kept.items():
        state[parameters[name]] = moments


def generator_array(generator: torch.Generator) -> dict[str, Array]:
    """A copy of a generator's state."""
    return {GENERATOR: generator.get_state().numpy().copy()}


def load_generator_array(generator: torch.Generator, arrays: Mapping[str, Array]) -> None:
    """Go on drawing where ``generator_array`` stopped.

    Raises:
        StaleFolderError: there is no such state.
    """
    try:
        generator.set_state(torch.tensor(arrays[GENERATOR]))
    except (KeyError, RuntimeError, TypeError) as error:
        raise StaleFolderError(
            "The checkpoint holds no random state that this version of torch can use",
            why=str(error),
            fix="go on with the version that wrote it, or start in a new run folder",
        ) from error
