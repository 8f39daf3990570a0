"""Gradients of the actor-critic loss for two dense networks on the CPU, written out instead of recorded in a graph.

With a graph a tenth of the time of CartPole's gradient steps, of 256 steps each, is arithmetic. Written out, an update
takes half of the time: a matrix product and an activation in place a layer, a dozen numpy operations for the loss.
``ActorCriticTrainer`` uses it where it applies and the graph elsewhere; both give the same gradients up to rounding.
Ranks share a step as with a graph (``optim.gradients``): each passes its own rows through the networks, and the loss is
of the rows of all.

Shapes: B steps, R of them this rank's, I inputs, P outputs of the action distribution.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from tidegate.algorithms.actor_critic_gradient import actor_critic_gradient
from tidegate.algorithms.actor_critic_settings import ActorCriticSettings
from tidegate.algorithms.objectives import Steps
from tidegate.learner.ranks.port import Ranks
from tidegate.learner.ranks.share import rows_of
from tidegate.models.activations import Activation
from tidegate.models.differentiated import DifferentiatedDistribution
from tidegate.models.layers import SHARED_OUTPUTS, with_shared_outputs
from tidegate.models.mlp import MlpPolicy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.models.torch_dense import LayerGradients, backpropagate_layers, layer_units


class DenseGradients:
    """Of one policy's parameters, which change in place; each one's ``grad`` is a view of one tensor, the norm's."""

    def __init__(
        self,
        policy: MlpPolicy,
        distribution: DifferentiatedDistribution,
        parameters: Mapping[str, Tensor],
    ) -> None:
        """``distribution``: the policy's own. ``parameters``: all of its parameters, on the CPU."""
        self._inputs = policy.inputs
        self._parameters = parameters
        trained = policy.trainable(parameters)
        self._distribution = distribution
        self._flat = torch.zeros(sum(parameter.numel() for parameter in trained.values()))
        self._gradients: dict[str, Tensor] = {}
        start = 0
        for name, parameter in trained.items():
            self._gradients[name] = self._flat[start : start + parameter.numel()].view_as(parameter)
            parameter.grad = self._gradients[name]
            start += parameter.numel()
        self._policy = _Network(policy.layers["policy"], trained, self._gradients, policy.activation)
        self._value = _Network(policy.layers["value"], trained, self._gradients, policy.activation)

    @torch.no_grad()
    def compute(
        self,
        observations: Mapping[str, Tensor],
        steps: Steps,
        settings: ActorCriticSettings,
        *,
        ranks: Ranks,
        mine: slice,
    ) -> dict[str, float]:
        """Write each parameter's gradient, scaled to ``max_grad_norm``; the loss' metrics, ``loss`` and ``grad_norm``.

        ``observations``: in full (R, *leaf shape), of those of the B ``steps`` that are ``mine``; there may be none.

        Raises:
            RankLostError: a rank is lost.
        """
        inputs_RI = self._inputs(self._parameters, observations, torch)
        policy_units, value_units = self._policy.units(inputs_RI), self._value.units(inputs_RI)
        outputs_BP = with_shared_outputs(policy_units[-1], self._parameters, torch)
        values_B = value_units[-1][:, 0]
        if ranks.count > 1:
            part = torch.cat([outputs_BP, value_units[-1]], dim=1)
            whole = ranks.gather(part, rows_of(mine, device=part.device), num_rows=len(steps))
            outputs_BP, values_B = whole[:, :-1], whole[:, -1]
        # A batch of extreme values is told by its metrics, which are not finite then.
        with np.errstate(all="ignore"):
            taken = self._distribution.differentiated(outputs_BP.numpy(), steps.actions_B.numpy())
            loss = actor_critic_gradient(taken.logprobs_B, taken.entropy_B, values_B.numpy(), steps, settings)
            by_outputs_BP = torch.as_tensor(taken.by_outputs(loss.by_logprobs_B, loss.by_entropy_B))
        by_outputs_RP, by_values_R = by_outputs_BP[mine], torch.as_tensor(loss.by_values_B)[mine]
        num_outputs = policy_units[-1].shape[1]
        if SHARED_OUTPUTS in self._gradients:
            torch.sum(by_outputs_RP[:, num_outputs:], 0, out=self._gradients[SHARED_OUTPUTS])
        self._policy.backpropagate(by_outputs_RP[:, :num_outputs], policy_units)
        self._value.backpropagate(by_values_R[:, None], value_units)
        ranks.add_up([self._flat])
        norm = math.sqrt(float(torch.dot(self._flat, self._flat)))
        # As torch.nn.utils.clip_grad_norm_ scales.
        self._flat.mul_(min(1.0, settings.max_grad_norm / (norm + 1e-6)))
        return {"loss": loss.total, "grad_norm": norm, **loss.metrics}


class _Network:
    """One of the two: its layers' parameters and where their gradients go."""

    def __init__(
        self,
        layers: Sequence[tuple[str, str]],
        trained: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        activation: Activation,
    ) -> None:
        # Detached tensors share the parameters' memory and need no gradient.
        self._weights = [trained[weight].detach() for weight, _ in layers]
        self._biases = [trained[bias].detach() for _, bias in layers]
        self._into = LayerGradients(
            weights=[gradients[weight] for weight, _ in layers],
            biases=[gradients[bias] for _, bias in layers],
        )
        self._activation: Activation = activation

    def units(self, inputs_BI: Tensor) -> list[Tensor]:
        return layer_units(inputs_BI, self._weights, self._biases, self._activation, activates_last=False)

    def backpropagate(self, gradient: Tensor, units: Sequence[Tensor]) -> None:
        backpropagate_layers(
            gradient, units, self._weights, self._activation, activates_last=False, into=self._into
        )


def dense_gradients(
    policy: SegmentPolicy, parameters: Mapping[str, Tensor], *, device: torch.device
) -> DenseGradients | None:
    """Of a policy of dense layers alone, on the CPU, whose distribution differentiates itself; None for others.

    A policy that inherits from ``MlpPolicy`` may compute otherwise.
    """
    if type(policy) is not MlpPolicy or device.type != "cpu":
        return None
    if not isinstance(policy.actions, DifferentiatedDistribution):
        return None
    return DenseGradients(policy, policy.actions, parameters)
