import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from tests.reference import grpo as slow
from tests.support.completions import chosen_lists, chosen_mask, floats
from tidegate.algorithms.token_values import last_chosen, token_advantages, value_loss

SEEDS = st.integers(0, 10_000)
SHARES = st.sampled_from([0.0, 0.5, 0.95, 1.0])


def noise(seed: int) -> Tensor:
    return torch.randn(
        chosen_mask().shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def test_a_reward_comes_at_the_last_token_that_was_chosen() -> None:
    mask_BT = torch.tensor(
        [[True, False, True, False], [False, False, False, False], [True, True, True, True]]
    )
    expected_BT = torch.zeros_like(mask_BT)
    expected_BT[0, 2] = expected_BT[2, 3] = True
    assert torch.equal(last_chosen(mask_BT), expected_BT)


@given(seed=SEEDS, discount=st.sampled_from([0.5, 0.9, 1.0]), lambda_=SHARES)
def test_advantages_over_turns_equal_their_slow_twin(seed: int, discount: float, lambda_: float) -> None:
    mask_BT = chosen_mask()
    rewards_BT, values_BT = noise(seed), noise(seed + 1)
    found_BT = token_advantages(
        rewards_BT=rewards_BT, values_BT=values_BT, mask_BT=mask_BT, discount=discount, lambda_=lambda_
    )
    expected = [
        slow.generalized_advantages(rewards, values, discount=discount, lambda_=lambda_)
        for rewards, values in zip(chosen_lists(rewards_BT), chosen_lists(values_BT), strict=True)
    ]
    for found, row in zip(chosen_lists(found_BT), expected, strict=True):
        assert found == pytest.approx(row, rel=1e-9, abs=1e-12)
    assert not found_BT[~mask_BT].any()


@given(seed=SEEDS)
def test_without_discount_or_bootstrap_an_advantage_is_the_reward_less_the_value(seed: int) -> None:
    mask_BT, values_BT = chosen_mask(), noise(seed)
    rewards_B = noise(seed + 1)[:, 0]
    found_BT = token_advantages(
        rewards_BT=rewards_B[:, None] * last_chosen(mask_BT),
        values_BT=values_BT,
        mask_BT=mask_BT,
        discount=1.0,
        lambda_=1.0,
    )
    expected_BT = (rewards_B[:, None] - values_BT).masked_fill(~mask_BT, 0.0)
    torch.testing.assert_close(found_BT, expected_BT)


@given(seed=SEEDS, lambda_=SHARES)
def test_a_value_that_is_right_leaves_no_advantage(seed: int, lambda_: float) -> None:
    mask_BT = chosen_mask()
    rewards_B = noise(seed)[:, 0]
    found_BT = token_advantages(
        rewards_BT=rewards_B[:, None] * last_chosen(mask_BT),
        values_BT=rewards_B[:, None].expand_as(mask_BT).clone(),
        mask_BT=mask_BT,
        discount=1.0,
        lambda_=lambda_,
    )
    torch.testing.assert_close(found_BT, torch.zeros_like(found_BT))


def test_replies_between_turns_have_no_effect() -> None:
    mask_BT = chosen_mask()
    rewards_BT, values_BT = noise(0), noise(1)
    found = [
        token_advantages(
            rewards_BT=rewards_BT.masked_fill(~mask_BT, other),
            values_BT=values_BT.masked_fill(~mask_BT, -other),
            mask_BT=mask_BT,
            discount=0.9,
            lambda_=0.8,
        )
        for other in (0.0, 1e6)
    ]
    assert torch.equal(found[0], found[1])


@given(seed=SEEDS, clip=st.sampled_from([0.0, 0.1, 0.5, 100.0]))
def test_value_loss_equals_its_slow_twin(seed: int, clip: float) -> None:
    values_BT, old_values_BT, returns_BT = noise(seed), noise(seed + 1), noise(seed + 2)
    found = value_loss(
        values_BT, old_values_BT=old_values_BT, returns_BT=returns_BT, mask_BT=chosen_mask(), clip=clip
    )
    expected = slow.value_loss(
        floats(values_BT[chosen_mask()]),
        floats(old_values_BT[chosen_mask()]),
        floats(returns_BT[chosen_mask()]),
        clip=clip,
    )
    assert float(found.total) == pytest.approx(expected, rel=1e-9)
    assert found.metrics["value_loss"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_value_loss_has_the_gradient_of_finite_differences(seed: int) -> None:
    old_values_BT, returns_BT = noise(seed + 1), noise(seed + 2)

    def loss_of(values_BT: Tensor) -> Tensor:
        return value_loss(
            values_BT, old_values_BT=old_values_BT, returns_BT=returns_BT, mask_BT=chosen_mask(), clip=0.3
        ).total

    assert torch.autograd.gradcheck(loss_of, (noise(seed).requires_grad_(),))


@pytest.mark.parametrize(
    ("moved", "target", "stopped"),
    [(0.5, 1.0, True), (0.5, -1.0, False), (-0.5, -1.0, True), (0.1, 1.0, False)],
)
def test_a_value_is_stopped_only_on_its_way_to_the_target(moved: float, target: float, stopped: bool) -> None:
    values_BT = torch.full((1, 1), moved, requires_grad=True)
    loss = value_loss(
        values_BT,
        old_values_BT=torch.zeros(1, 1),
        returns_BT=torch.full((1, 1), target),
        mask_BT=torch.ones(1, 1, dtype=torch.bool),
        clip=0.2,
    )
    (found,) = torch.autograd.grad(loss.total, values_BT)
    assert bool(found == 0.0) is stopped
    assert loss.metrics["value_clipped_fraction"] == float(stopped)


def test_explained_variance_measures_the_values() -> None:
    returns_BT, mask_BT = noise(3), chosen_mask()

    def explained(values_BT: Tensor) -> float:
        loss = value_loss(
            values_BT, old_values_BT=values_BT, returns_BT=returns_BT, mask_BT=mask_BT, clip=0.0
        )
        return loss.metrics["explained_variance"]

    assert explained(returns_BT) == pytest.approx(1.0)
    assert explained(torch.zeros_like(returns_BT)) == pytest.approx(0.0)
    assert explained(-returns_BT) == pytest.approx(-3.0)


def test_a_batch_without_chosen_tokens_has_zero_loss() -> None:
    values_BT = torch.ones(2, 3)
    loss = value_loss(
        values_BT,
        old_values_BT=values_BT,
        returns_BT=values_BT,
        mask_BT=torch.zeros(2, 3, dtype=torch.bool),
        clip=0.2,
    )
    assert float(loss.total) == 0.0
    assert loss.metrics["explained_variance"] == 0.0
