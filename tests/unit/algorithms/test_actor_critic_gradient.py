"""The written-out gradient beside autograd of ``actor_critic_loss``."""

import dataclasses
from dataclasses import dataclass

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from tidegate.algorithms.actor_critic_gradient import LossGradient, actor_critic_gradient
from tidegate.algorithms.actor_critic_settings import ActorCriticSettings, ObjectiveName
from tidegate.algorithms.importance import LOG_RATIO_MAX
from tidegate.algorithms.objectives import Steps, actor_critic_loss


@dataclass(frozen=True)
class Inputs:
    """Each (B,)."""

    logprobs_B: Tensor
    entropy_B: Tensor
    values_B: Tensor


def settings(objective: ObjectiveName) -> ActorCriticSettings:
    made = ActorCriticSettings(epochs=1, minibatches=1, entropy_weight=0.3, target_kl=0.02)
    return msgspec.structs.replace(made, objective=objective)


def drawn(seed: int, num_steps: int, *, scale: float = 1.0) -> tuple[Inputs, Steps]:
    """What the loss is of; larger scales reach the clips and the bound of ratios."""
    generator = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(num_steps, generator=generator)

    steps = Steps(
        observations={},
        actions_B=torch.zeros(num_steps, dtype=torch.int64),
        advantages_B=normal(),
        value_targets_B=normal(),
        weights_B=normal().abs(),
        anchor_logprobs_B=scale * normal(),
    )
    return Inputs(scale * normal(), normal().abs(), scale * normal()), steps


def written_out(inputs: Inputs, steps: Steps, objective: ObjectiveName) -> LossGradient:
    return actor_critic_gradient(
        inputs.logprobs_B.numpy(),
        inputs.entropy_B.numpy(),
        inputs.values_B.numpy(),
        steps,
        settings(objective),
    )


def by_autograd(inputs: Inputs, steps: Steps, objective: ObjectiveName) -> LossGradient:
    needed = [
        each.detach().clone().requires_grad_()
        for each in (inputs.logprobs_B, inputs.entropy_B, inputs.values_B)
    ]
    loss = actor_critic_loss(needed[0], needed[1], needed[2], steps, settings(objective))
    by_logprobs_B, by_entropy_B, by_values_B = torch.autograd.grad(loss.total, needed)
    return LossGradient(
        loss.total.item(), loss.metrics, by_logprobs_B.numpy(), by_entropy_B.numpy(), by_values_B.numpy()
    )


@pytest.mark.parametrize("objective", ["vtrace", "ppo", "a2c", "none"])
@given(seed=st.integers(0, 2**31), num_steps=st.integers(1, 40), scale=st.sampled_from([0.05, 1.0, 15.0]))
def test_loss_metrics_and_gradients_equal_autograd(
    objective: ObjectiveName, seed: int, num_steps: int, scale: float
) -> None:
    inputs, steps = drawn(seed, num_steps, scale=scale)
    found, expected = written_out(inputs, steps, objective), by_autograd(inputs, steps, objective)
    assert found.total == pytest.approx(expected.total, rel=1e-4, abs=1e-5)
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(found.by_logprobs_B, expected.by_logprobs_B, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.by_entropy_B, expected.by_entropy_B, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.by_values_B, expected.by_values_B, rtol=1e-4, atol=1e-6)


def test_a_ratio_beyond_its_bound_has_no_gradient_as_in_autograd() -> None:
    inputs, steps = drawn(0, 4)
    # The clip stops moves along an advantage only.
    steps.advantages_B.fill_(-1.0)
    far = dataclasses.replace(inputs, logprobs_B=steps.anchor_logprobs_B + LOG_RATIO_MAX + 1.0)
    assert not by_autograd(far, steps, "vtrace").by_logprobs_B.any()
    assert not written_out(far, steps, "vtrace").by_logprobs_B.any()


@pytest.mark.parametrize("name", ["logprobs_B", "entropy_B", "values_B"])
def test_a_number_that_is_not_finite_stays_visible_in_the_total(name: str) -> None:
    inputs, steps = drawn(1, 5)
    getattr(inputs, name)[3] = torch.nan
    assert np.isnan(written_out(inputs, steps, "vtrace").total)
