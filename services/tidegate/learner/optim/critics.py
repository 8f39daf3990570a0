"""Critics and their targets: what a trainer of continuous actions keeps beside its policy.

Shapes: B observations, F features, C critics.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tidegate.core.errors import RecordError, StaleFolderError
from tidegate.core.records import Array
from tidegate.learner.optim.critic_features import CriticFeatures
from tidegate.models.action_values import ActionValues
from tidegate.models.layers import check_tensors

CRITICS = "critics/"
TARGETS = "targets/"


class Critics:
    """``trained``: parameters by their name in a checkpoint, which an optimiser changes in place.

    Among them are those of ``features``, which are the policy's; its targets are the critics' own.
    """

    def __init__(
        self,
        network: ActionValues,
        features: CriticFeatures,
        *,
        rng: np.random.Generator,
        device: torch.device,
    ) -> None:
        """Fresh parameters; the targets are equal to them."""
        self._network = network
        self._features = features
        fresh = network.init_params(rng)
        self._params = {name: torch.tensor(array, device=device) for name, array in fresh.items()}
        self._targets = {name: tensor.clone() for name, tensor in self._params.items()}
        # The same memory without a graph: the policy's loss has no gradient for critics.
        self._fixed = {name: tensor.detach() for name, tensor in self._params.items()}
        own = {name: tensor.requires_grad_() for name, tensor in self._params.items()}
        self.trained = {f"{CRITICS}{name}": tensor for name, tensor in {**features.trained, **own}.items()}

    def values(self, features_BF: Tensor, actions_B: Tensor) -> Tensor:
        """Q (C, B), with the graph of critics and features."""
        return self._network(self._params, features_BF, actions_B)

    def fixed_values(self, features_BF: Tensor, actions_B: Tensor) -> Tensor:
        """Q (C, B), with the graph of the actions alone."""
        return self._network(self._fixed, features_BF.detach(), actions_B)

    @torch.no_grad()
    def target_values(self, observations: Mapping[str, Tensor], actions_B: Tensor) -> Tensor:
        """Q (C, B) of the targets, which read features of their own."""
        return self._network(self._targets, self._features.of_targets(observations), actions_B)

    @torch.no_grad()
    def move_targets(self, rate: float) -> None:
        """Move each target by the share ``rate`` of its distance to the critic: Polyak averaging."""
        for name, target in self._targets.items():
            target.lerp_(self._fixed[name], rate)
        for name, target in self._features.targets.items():
            target.lerp_(self._features.trained[name], rate)

    def tensors(self) -> dict[str, Tensor]:
        """Critics and targets by their names in a checkpoint, not copied."""
        all_targets = {**self._features.targets, **self._targets}
        targets = {f"{TARGETS}{name}": tensor for name, tensor in all_targets.items()}
        return {**{f"{CRITICS}{name}": tensor for name, tensor in self._fixed.items()}, **targets}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Restore ``tensors`` from a checkpoint.

        Raises:
            StaleFolderError: it holds other networks.
        """
        shapes = {name: tuple(tensor.shape) for name, tensor in self.tensors().items()}
        kept = {name: array for name, array in arrays.items() if name.startswith((CRITICS, TARGETS))}
        try:
            check_tensors(shapes, kept, policy="these critics")
        except RecordError as error:
            raise StaleFolderError(
                "The checkpoint holds other critics",
                why=error.what,
                fix="restore policy.hidden and learner.sac.critic_hidden, or start in a new run folder",
            ) from error
        for name, tensor in self.tensors().items():
            tensor.copy_(torch.tensor(kept[name]))
