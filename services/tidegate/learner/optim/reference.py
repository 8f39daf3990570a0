"""The reference policy: the start of reinforcement learning, for objectives with a KL penalty to it."""

import copy
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from tidegate.core.records import Array
from tidegate.models.causal_lm import CausalLm
from tidegate.models.parameter_arrays import copied_arrays

# Names the reference policy's parameters in a checkpoint.
PREFIX = "reference/"


class ReferencePolicy:
    """The reference of a model: a frozen second model, or the model itself with other adapters.

    The second model costs as much memory as the first. A model that trains adapters needs none: its reference has them
    disabled, or has those that reinforcement learning began from.
    """

    def __init__(self, model: CausalLm) -> None:
        self._model = model
        self._adapters: dict[str, Tensor] = {}
        self._second = copy.deepcopy(model) if model.as_reference() is None else None
        if self._second is not None:
            for tensor in self._second.trainable().values():
                tensor.requires_grad = False

    def set_parameters(self, policy: Mapping[str, Array]) -> None:
        """Set the reference's parameters; of a model that trains adapters, none disable them.

        Raises:
            RecordError: the parameters do not fit the model.
        """
        if self._second is not None:
            self._second.load_arrays(policy)
            return
        if policy:
            self._model.check_arrays(policy)
        device = self._model.device
        self._adapters = {name: torch.tensor(array, device=device) for name, array in policy.items()}

    @contextmanager
    def model(self) -> Generator[CausalLm]:
        """The reference model, valid within the block."""
        if self._second is not None:
            yield self._second
            return
        if self._adapters:
            with _exchanged(self._model.trainable(), self._adapters), torch.no_grad():
                yield self._model
            return
        switched_off = self._model.as_reference()
        assert switched_off is not None, "a model without a second one can disable its adapters"
        with switched_off, torch.no_grad():
            yield self._model

    def arrays(self) -> dict[str, Array]:
        """The reference's parameters in a checkpoint."""
        kept = copied_arrays(self._adapters) if self._second is None else self._second.to_arrays()
        return {f"{PREFIX}{name}": array for name, array in kept.items()}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Restore a checkpoint.

        Raises:
            RecordError: it holds no reference of such a model.
        """
        kept = {name.removeprefix(PREFIX): array for name, array in arrays.items() if name.startswith(PREFIX)}
        self.set_parameters(kept)


@contextmanager
def _exchanged(parameters: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> Generator[None]:
    """The parameters hold other values within the block; nothing is copied."""
    own = {name: parameter.data for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        parameter.data = others[name]
    try:
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = own[name]
