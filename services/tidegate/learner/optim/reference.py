"""The reference policy: the start of reinforcement learning, for objectives with a KL penalty to it."""

import copy
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch

from tidegate.core.records import Array
from tidegate.models.causal_lm import CausalLm

# Names the reference policy's parameters in a checkpoint.
PREFIX = "reference/"


class ReferencePolicy:
    """The reference of a model: the model itself with its adapters disabled, or a frozen second model.

    The second model costs as much memory as the first; a model that trains adapters needs none.
    """

    def __init__(self, model: CausalLm) -> None:
        self._model = model
        self._second = copy.deepcopy(model) if model.as_reference() is None else None
        if self._second is not None:
            for tensor in self._second.trainable().values():
                tensor.requires_grad = False

    def set_parameters(self, policy: Mapping[str, Array]) -> None:
        """Set the reference's parameters; a reference by disabled adapters is not changed.

        Raises:
            RecordError: the parameters do not fit the model.
        """
        if self._second is not None:
            self._second.load_arrays(policy)

    @contextmanager
    def model(self) -> Generator[CausalLm]:
        """The reference model, valid within the block."""
        if self._second is not None:
            yield self._second
            return
        switched_off = self._model.as_reference()
        assert switched_off is not None, "a model without a second one can disable its adapters"
        with switched_off, torch.no_grad():
            yield self._model

    def arrays(self) -> dict[str, Array]:
        """The reference's parameters in a checkpoint."""
        kept = {} if self._second is None else self._second.to_arrays()
        return {f"{PREFIX}{name}": array for name, array in kept.items()}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Restore a checkpoint.

        Raises:
            RecordError: it holds no reference of such a model.
        """
        kept = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
        self.set_parameters(kept)
