import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.reference import sac as slow
from tidegate.algorithms.q_targets import transition_targets
from tidegate.algorithms.sac import critic_loss, errors, soft_policy_loss, soft_values, temperature_loss

GOLDEN = Path(__file__).parents[2] / "golden" / "sac.json"
SEEDS = st.integers(0, 2**31)
NUM_CRITICS, NUM_ROWS, NUM_STEPS = 2, 7, 3
DISCOUNT, TEMPERATURE = 0.9, 0.3


class Drawn:
    """Transitions, and what networks say of them."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.lengths_B = torch.tensor(rng.integers(1, NUM_STEPS + 1, NUM_ROWS), dtype=torch.int32)
        rewards = rng.normal(size=(NUM_ROWS, NUM_STEPS)).astype(np.float32)
        past = np.arange(NUM_STEPS) >= self.lengths_B.numpy()[:, None]
        self.rewards_BH = torch.tensor(np.where(past, 0.0, rewards).astype(np.float32))
        self.terminated_B = torch.tensor(rng.random(NUM_ROWS) < 0.4)
        self.values_CB = torch.tensor(rng.normal(size=(NUM_CRITICS, NUM_ROWS)).astype(np.float32))
        self.next_values_CB = torch.tensor(rng.normal(size=(NUM_CRITICS, NUM_ROWS)).astype(np.float32))
        self.logprobs_B = torch.tensor(rng.normal(size=NUM_ROWS).astype(np.float32))
        self.weights_B = torch.tensor(rng.uniform(0.1, 1.0, NUM_ROWS).astype(np.float32))

    def targets(self, *, temperature: float = TEMPERATURE) -> Tensor:
        values_B = soft_values(self.next_values_CB, self.logprobs_B, temperature=torch.tensor(temperature))
        return transition_targets(
            self.rewards_BH, self.lengths_B, self.terminated_B, values_B, torch, discount=DISCOUNT
        )


@given(SEEDS)
def test_targets_equal_the_slow_ones(seed: int) -> None:
    drawn = Drawn(seed)
    expected = [
        slow.target(
            drawn.rewards_BH[b].numpy().tolist(),
            length=int(drawn.lengths_B[b]),
            terminated=bool(drawn.terminated_B[b]),
            next_values=drawn.next_values_CB[:, b].numpy().tolist(),
            next_logprob=float(drawn.logprobs_B[b]),
            temperature=TEMPERATURE,
            discount=DISCOUNT,
        )
        for b in range(NUM_ROWS)
    ]
    np.testing.assert_allclose(drawn.targets().numpy(), expected, rtol=1e-5, atol=1e-5)


@given(SEEDS)
def test_losses_equal_the_slow_ones(seed: int) -> None:
    drawn = Drawn(seed)
    values, targets = drawn.values_CB.numpy().tolist(), drawn.targets()
    found = critic_loss(drawn.values_CB, targets, weights_B=drawn.weights_B)
    expected = slow.critic_loss(values, targets.numpy().tolist(), weights=drawn.weights_B.numpy().tolist())
    assert float(found.total) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    policy = soft_policy_loss(drawn.logprobs_B, drawn.values_CB, temperature=torch.tensor(TEMPERATURE))
    expected = slow.policy_loss(drawn.logprobs_B.numpy().tolist(), values, temperature=TEMPERATURE)
    assert float(policy.total) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    temperature = temperature_loss(torch.tensor(-0.7), drawn.logprobs_B, target_entropy=-1.5)
    expected = slow.temperature_loss(-0.7, drawn.logprobs_B.numpy().tolist(), target_entropy=-1.5)
    assert float(temperature.total) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_numbers_are_what_they_always_were() -> None:
    golden, drawn = json.loads(GOLDEN.read_text()), Drawn(7)
    temperature = torch.tensor(TEMPERATURE)
    found = {
        "target_mean": drawn.targets().mean(),
        "critic_loss": critic_loss(drawn.values_CB, drawn.targets(), weights_B=drawn.weights_B).total,
        "policy_loss": soft_policy_loss(drawn.logprobs_B, drawn.values_CB, temperature=temperature).total,
        "temperature_loss": temperature_loss(torch.tensor(-0.7), drawn.logprobs_B, target_entropy=-1.5).total,
    }
    assert {name: float(value) for name, value in found.items()} == pytest.approx(golden, abs=1e-5)


@given(SEEDS)
def test_without_a_temperature_targets_are_those_of_clipped_double_q_learning(seed: int) -> None:
    drawn = Drawn(seed)
    following = transition_targets(
        drawn.rewards_BH,
        drawn.lengths_B,
        drawn.terminated_B,
        torch.minimum(drawn.next_values_CB[0], drawn.next_values_CB[1]),
        torch,
        discount=DISCOUNT,
    )
    torch.testing.assert_close(drawn.targets(temperature=0.0), following)


@given(SEEDS, st.floats(-3.0, 3.0))
def test_temperature_rises_exactly_while_the_entropy_is_below_its_target(
    seed: int, target_entropy: float
) -> None:
    logprobs_B = Drawn(seed).logprobs_B
    log_temperature = torch.tensor(0.2, requires_grad=True)
    loss = temperature_loss(log_temperature, logprobs_B, target_entropy=target_entropy)
    (gradient,) = torch.autograd.grad(loss.total, [log_temperature])
    missing = target_entropy + float(logprobs_B.mean())
    assert float(gradient) == pytest.approx(-math.exp(0.2) * missing, abs=1e-5)


def test_each_critic_is_drawn_towards_the_same_target_by_its_own_weighted_error() -> None:
    drawn = Drawn(3)
    values_CB, targets_B = drawn.values_CB.clone().requires_grad_(), drawn.targets()
    loss = critic_loss(values_CB, targets_B, weights_B=drawn.weights_B)
    (gradient_CB,) = torch.autograd.grad(loss.total, [values_CB])
    expected_CB = drawn.weights_B * (drawn.values_CB - targets_B) / NUM_ROWS
    torch.testing.assert_close(gradient_CB, expected_CB)
    torch.testing.assert_close(
        errors(drawn.values_CB, targets_B), (drawn.values_CB - targets_B).abs().mean(dim=0)
    )


def test_policy_follows_the_smaller_critic_and_its_entropy() -> None:
    drawn = Drawn(4)
    logprobs_B, values_CB = (
        drawn.logprobs_B.clone().requires_grad_(),
        drawn.values_CB.clone().requires_grad_(),
    )
    loss = soft_policy_loss(logprobs_B, values_CB, temperature=torch.tensor(TEMPERATURE))
    of_logprobs, of_values = torch.autograd.grad(loss.total, [logprobs_B, values_CB])
    torch.testing.assert_close(of_logprobs, torch.full((NUM_ROWS,), TEMPERATURE / NUM_ROWS))
    smaller_CB = (drawn.values_CB == drawn.values_CB.amin(dim=0)).float()
    torch.testing.assert_close(of_values, -smaller_CB / NUM_ROWS)


def test_tensors_of_other_shapes_are_refused() -> None:
    drawn = Drawn(5)
    with pytest.raises(ValueError, match="values_CB"):
        soft_values(drawn.values_CB.T, drawn.logprobs_B, temperature=torch.tensor(1.0))
    with pytest.raises(ValueError, match="values_CB"):
        critic_loss(drawn.values_CB[:, 1:], drawn.logprobs_B)
    with pytest.raises(ValueError, match="weights_B"):
        critic_loss(drawn.values_CB, drawn.logprobs_B, weights_B=drawn.weights_B[1:])
    with pytest.raises(ValueError, match="values_CB"):
        soft_policy_loss(drawn.logprobs_B, drawn.values_CB.T, temperature=torch.tensor(1.0))
    with pytest.raises(ValueError, match="log_temperature"):
        temperature_loss(torch.zeros(2), drawn.logprobs_B, target_entropy=0.0)
