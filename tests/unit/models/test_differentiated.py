"""Gradients of distributions written out, beside autograd of the same formulas."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from tidegate.core.spaces import BoxSpace
from tidegate.models.categorical import Categorical
from tidegate.models.differentiated import DifferentiatedDistribution
from tidegate.models.distributions import ActionDistribution
from tidegate.models.gaussian import LOG_STD_MAX, DiagonalGaussian

GAUSSIAN = DiagonalGaussian(BoxSpace(shape=(2,), dtype="float32", low=(-1.0,), high=(2.0,)))
DISTRIBUTIONS: list[ActionDistribution] = [Categorical(2), Categorical(5), GAUSSIAN]


def check_against_autograd(
    distribution: ActionDistribution, outputs_BP: np.ndarray[Any, Any], *, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    actions, _ = distribution.sample(outputs_BP, rng)
    weights_2B = rng.standard_normal((2, len(outputs_BP))).astype(np.float32)
    outputs = torch.tensor(outputs_BP, requires_grad=True)
    taken = torch.tensor(
        actions, dtype=torch.int64 if distribution.action_dtype == "int32" else torch.float32
    )
    logprobs_B, entropy_B = distribution.logprobs_and_entropy(outputs, taken, torch)
    loss = (torch.tensor(weights_2B) * torch.stack([logprobs_B, entropy_B])).sum()
    (expected_BP,) = torch.autograd.grad(loss, [outputs])
    assert isinstance(distribution, DifferentiatedDistribution)
    found = distribution.differentiated(outputs_BP, taken.numpy())
    np.testing.assert_allclose(found.logprobs_B, logprobs_B.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.entropy_B, entropy_B.detach().numpy(), rtol=1e-5, atol=1e-5)
    gradient_BP = found.by_outputs(weights_2B[0], weights_2B[1])
    assert gradient_BP.dtype == np.float32
    np.testing.assert_allclose(gradient_BP, expected_BP.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=["two", "five", "gaussian"])
@given(seed=st.integers(0, 2**31), num_rows=st.integers(1, 20), scale=st.sampled_from([0.01, 1.0, 3.0]))
def test_values_and_gradients_equal_autograd(
    distribution: ActionDistribution, seed: int, num_rows: int, scale: float
) -> None:
    outputs_BP = scale * np.random.default_rng(seed).standard_normal((num_rows, distribution.num_outputs))
    check_against_autograd(distribution, outputs_BP.astype(np.float32), seed=seed)


def test_a_deviation_beyond_its_bound_has_no_gradient() -> None:
    outputs_BP = np.array([[0.1, 0.2, LOG_STD_MAX + 1.0, 0.0]], np.float32)
    check_against_autograd(GAUSSIAN, outputs_BP, seed=1)
    found = GAUSSIAN.differentiated(outputs_BP, np.zeros((1, 2), np.float32))
    one_B = np.ones(1, np.float32)
    assert found.by_outputs(one_B, one_B)[0, 2] == 0.0
