"""AdamW by ``torch.optim``'s functional form, with moments named by parameter.

The functional form and not the class ``torch.optim.AdamW``: constructing the class imports torch's compiler
(``torch._dynamo``, inductor, sympy), which costs 3.8 CPU-seconds and 162 MB at a learner's start with torch 2.13, more
than all the rest of it. Both run the same fused kernel and give the same bits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adamw import adamw


@dataclass(frozen=True, slots=True)
class Moments:
    """Adam's state of one parameter: step count (a float32 scalar), running means of the gradient and its square.

    The field names are those of ``torch.optim``; checkpoints hold them.
    """

    step: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


class AdamW:
    """Adam with decoupled weight decay; without decay it is Adam.

    Kingma & Ba 2015, algorithm 1; Loshchilov & Hutter 2019, algorithm 2 with the learning rate as schedule.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        *,
        learning_rate: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        rate_factors: Mapping[str, float] | None = None,
        moments: Mapping[str, Moments] | None = None,
    ) -> None:
        """``parameters`` are trained in place; ``learning_rate`` may be set between steps.

        ``rate_factors``: of the learning rate, by parameter; 1 for those that are not named. ``moments``: of each
        parameter, changed in place; zeros of its own without.

        Raises:
            ValueError: a parameter is not contiguous, or not on the device and of the dtype of the others.
        """
        kinds = {(parameter.device, parameter.dtype) for parameter in parameters.values()}
        if len(kinds) > 1:
            raise ValueError(f"Parameters must share one device and dtype, found {kinds}")
        for name, parameter in parameters.items():
            # The fused kernel reads a parameter, its gradient and its moments in memory order and ignores strides.
            if not parameter.is_contiguous():
                raise ValueError(f"The parameter {name!r} of strides {parameter.stride()} is not contiguous")
        self.learning_rate = learning_rate
        self.parameters = dict(parameters)
        self.moments = dict(moments or {name: _zero_moments(each) for name, each in parameters.items()})
        self._beta1 = beta1
        self._beta2 = beta2
        self._epsilon = epsilon
        self._weight_decay = weight_decay
        factors = {name: (rate_factors or {}).get(name, 1.0) for name in parameters}
        # One fused call for all parameters of the same rate.
        self._groups = {
            factor: [name for name in parameters if factors[name] == factor]
            for factor in set(factors.values())
        }

    def clear_moments(self) -> None:
        """Zero the moments, as before the first step."""
        for moments in self.moments.values():
            for tensor in (moments.step, moments.exp_avg, moments.exp_avg_sq):
                tensor.zero_()

    def clear_gradients(self) -> None:
        """Drop the gradients, so that the next backward pass does not add to them."""
        for parameter in self.parameters.values():
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Take one step along the gradients. A parameter without a gradient keeps its value and its moments."""
        for factor, names in self._groups.items():
            self._step_of(names, learning_rate=factor * self.learning_rate)

    def _step_of(self, names: Sequence[str], *, learning_rate: float) -> None:
        gradients: dict[str, Tensor] = {}
        for name in names:
            gradient = self.parameters[name].grad
            if gradient is not None:
                gradients[name] = gradient.contiguous()
        if not gradients:
            return
        moments = [self.moments[name] for name in gradients]
        adamw(
            [self.parameters[name] for name in gradients],
            list(gradients.values()),
            [kept.exp_avg for kept in moments],
            [kept.exp_avg_sq for kept in moments],
            [],
            [kept.step for kept in moments],
            fused=True,
            amsgrad=False,
            beta1=self._beta1,
            beta2=self._beta2,
            lr=learning_rate,
            weight_decay=self._weight_decay,
            eps=self._epsilon,
            maximize=False,
        )


def _zero_moments(parameter: Tensor) -> Moments:
    return Moments(
        step=torch.zeros((), dtype=torch.float32, device=parameter.device),
        exp_avg=torch.zeros_like(parameter, requires_grad=False),
        exp_avg_sq=torch.zeros_like(parameter, requires_grad=False),
    )
