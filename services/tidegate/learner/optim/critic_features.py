"""Features of observations that critics share with their policy: trained by the critics' loss alone, with targets.

A policy gradient through convolutions would pull them to and fro; the policy reads features as they are.

Source: Yarats 2021, section 4.3 (its encoder).

Shapes: B observations, F features.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from tidegate.learner.optim.policy_network import PolicyNetwork, Precision
from tidegate.models.policy_port import FeaturePolicy


class CriticFeatures:
    """``trained``: the parameters of features by name, a part of the policy's own; none over flat observations."""

    def __init__(
        self,
        policy: FeaturePolicy,
        params: Mapping[str, Tensor],
        *,
        precision: Precision,
        device: torch.device,
    ) -> None:
        """``params``: of the policy, which change in place. ``precision``: of convolutions."""
        self._policy = policy
        self._params = params
        self._in_precision = PolicyNetwork(policy, params, precision=precision, device=device).in_precision
        self.trained = policy.feature_parameters(params)
        self.targets = {name: tensor.detach().clone() for name, tensor in self.trained.items()}

    def __call__(self, observations: Mapping[str, Tensor]) -> Tensor:
        """Features (B, F), with their graph."""
        return self._features(self._params, observations)

    @torch.no_grad()
    def of_targets(self, observations: Mapping[str, Tensor]) -> Tensor:
        """Features (B, F) that target critics read."""
        return self._features({**self._params, **self.targets}, observations)

    def _features(self, params: Mapping[str, Tensor], observations: Mapping[str, Tensor]) -> Tensor:
        with self._in_precision():
            return self._policy.features(params, observations, torch).float()
