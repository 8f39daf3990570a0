"""Converts an optimiser's moments and a generator's state to named arrays and back."""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from tidegate.core.errors import StaleFolderError
from tidegate.core.records import Array
from tidegate.learner.optim.adam import AdamW

GENERATOR = "generator"
_MOMENT = "optimizer/"


def optimizer_arrays(optimizer: AdamW) -> dict[str, Array]:
    """A copy of the optimiser's state of each parameter, by ``optimizer/<parameter>/<moment>``."""
    return {name: tensor.cpu().numpy().copy() for name, tensor in optimizer_tensors(optimizer).items()}


def load_optimizer_arrays(
    optimizer: AdamW, arrays: Mapping[str, Array], *, prefix: str = "", others: tuple[str, ...] = ()
) -> None:
    """Restore the arrays of ``optimizer_arrays``, all or none of them.

    Without any the moments are reset to zero: earlier versions wrote none before their first gradient step.
    Where a checkpoint holds several optimisers, ``prefix`` is what the names of this one's parameters begin with, or
    ``others`` what those of the others do.

    Raises:
        StaleFolderError: they do not match the optimiser's parameters.
    """
    tensors = optimizer_tensors(optimizer)
    foreign = tuple(f"{_MOMENT}{name}" for name in others)
    kept = {
        name: array
        for name, array in arrays.items()
        if name.startswith(f"{_MOMENT}{prefix}") and not name.startswith(foreign)
    }
    for name, array in kept.items():
        if name not in tensors or array.shape != tuple(tensors[name].shape):
            raise StaleFolderError(
                f"The checkpoint holds {name!r} of shape {array.shape}",
                why="it was trained with another network",
                fix="restore the run file's policy section, or start in a new run folder",
            )
    if kept and kept.keys() != tensors.keys():
        raise StaleFolderError(
            "The checkpoint holds the optimiser of another network",
            why=f"it holds {len(kept)} of the {len(tensors)} moments that this network has",
            fix="restore the run file's policy section, or start in a new run folder",
        )
    for name, tensor in tensors.items():
        # In place: the moments keep the layout of their parameter, as the fused kernel requires.
        if kept:
            tensor.copy_(torch.tensor(kept[name]))
        else:
            tensor.zero_()


def optimizer_tensors(optimizer: AdamW) -> dict[str, Tensor]:
    """The moments, not copied, by the names of ``optimizer_arrays``."""
    return {
        f"{_MOMENT}{name}/{field.name}": getattr(moments, field.name)
        for name, moments in optimizer.moments.items()
        for field in dataclasses.fields(moments)
    }


def generator_array(generator: torch.Generator) -> dict[str, Array]:
    """A copy of a generator's state."""
    return {GENERATOR: generator.get_state().numpy().copy()}


def load_generator_array(generator: torch.Generator, arrays: Mapping[str, Array]) -> None:
    """Restore the state of ``generator_array``.

    Raises:
        StaleFolderError: the state is missing or invalid.
    """
    try:
        generator.set_state(torch.tensor(arrays[GENERATOR]))
    except (KeyError, RuntimeError, TypeError) as error:
        raise StaleFolderError(
            "The checkpoint holds no random state that this version of torch can use",
            why=str(error),
            fix="resume with the version that wrote it, or start in a new run folder",
        ) from error
