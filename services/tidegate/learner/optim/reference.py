"""The policy that reinforcement began from, for objectives that hold the new one near to it."""

import copy
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch

from tidegate.core.records import Array
from tidegate.models.causal_lm import CausalLm

# Names the reference policy's parameters in a checkpoint.
PREFIX = "reference/"


class ReferencePolicy:
    """The reference of a model: the model itself with its adapters switched off, or a second one, never trained.

    The second one costs as much memory as the model; a model whose adapters are trained needs none.
    """

    def __init__(self, model: CausalLm) -> None:
        """The model as it stands now."""
        self._model = model
        self._second = copy.deepcopy(model) if model.as_reference() is None else None
        if self._second is not None:
            for tensor in self._second.trainable().values():
                tensor.requires_grad = False

    def become(self, policy: Mapping[str, Array]) -> None:
        """Be this policy from now on; a reference without adapters stays what it is.

        Raises:
            RecordError: these are not the parameters of such a model.
        """
        if self._second is not None:
            self._second.load_arrays(policy)

    @contextmanager
    def model(self) -> Generator[CausalLm]:
        """The model to ask, for as long as the block lasts."""
        if self._second is not None:
            yield self._second
            return
        switched_off = self._model.as_reference()
        assert switched_off is not None, "a model without a second one has a switch"
        with switched_off, torch.no_grad():
            yield self._model

    def arrays(self) -> dict[str, Array]:
        """What a checkpoint keeps of it."""
        kept = {} if self._second is None else self._second.to_arrays()
        return {f"{PREFIX}{name}": array for name, array in kept.items()}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Go on from a checkpoint.

        Raises:
            RecordError: it holds no reference of such a model.
        """
        kept = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
        self.become(kept)
