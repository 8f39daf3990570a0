"""A second copy of a network's parameters that follows the first one, for targets that hold still."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tidegate.core.errors import StaleFolderError
from tidegate.core.records import Array

_TARGET = "target/"
_STEPS = "target_steps"


def without_target(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of a trainer's state that belong to no target network."""
    return {name: array for name, array in arrays.items() if not _is_of_target(name)}


class TargetNetwork:
    """Parameters that are copied every ``period`` gradient steps (Mnih 2015).

    ``params``: the copy, by the names of the originals; its tensors change in place.
    """

    def __init__(self, params: Mapping[str, Tensor], *, period: int) -> None:
        """Begins as a copy of ``params``, which it keeps reading."""
        self._online = params
        self._period = period
        self.params = {name: tensor.detach().clone() for name, tensor in params.items()}
        # Gradient steps since the last copy.
        self._steps = torch.zeros(1, dtype=torch.int64)

    @torch.no_grad()
    def count_step(self) -> None:
        """A gradient step was made."""
        self._steps += 1
        if int(self._steps) >= self._period:
            self._copy()

    def tensors(self) -> dict[str, Tensor]:
        """All state, not copied, by name."""
        return {**{f"{_TARGET}{name}": tensor for name, tensor in self.params.items()}, _STEPS: self._steps}

    def arrays(self) -> dict[str, Array]:
        """A copy of the state, by the same names."""
        return {name: tensor.cpu().numpy().copy() for name, tensor in self.tensors().items()}

    @torch.no_grad()
    def load(self, arrays: Mapping[str, Array]) -> None:
        """Restore the arrays of ``arrays``; without any, as in a policy from elsewhere, begin with a copy.

        Raises:
            StaleFolderError: they belong to another network.
        """
        tensors = self.tensors()
        kept = {name: array for name, array in arrays.items() if _is_of_target(name)}
        if not kept:
            self._copy()
            return
        for name in tensors.keys() | kept.keys():
            if name not in kept or name not in tensors or tuple(tensors[name].shape) != kept[name].shape:
                raise StaleFolderError(
                    "The checkpoint holds the target network of another policy",
                    why=f"{name} is missing, unknown, or has another shape",
                    fix="restore the run file's policy section, or start in a new run folder",
                )
        for name, tensor in tensors.items():
            tensor.copy_(torch.tensor(kept[name]))

    def _copy(self) -> None:
        for name, tensor in self.params.items():
            tensor.copy_(self._online[name])
        self._steps.zero_()


def _is_of_target(name: str) -> bool:
    return name.startswith(_TARGET) or name == _STEPS
