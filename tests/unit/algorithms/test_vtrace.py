from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from tests.reference import vtrace as slow
from tidegate.algorithms.advantages import generalized_advantages
from tidegate.algorithms.vtrace import VtraceReturns, vtrace

SEEDS = st.integers(0, 2**31)
NUM_STEPS = st.integers(1, 40)
NUM_ENVS = 3


def noise(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)


def example(seed: int, num_steps: int, *, end_share: float = 0.2) -> dict[str, Tensor]:
    """Rewards, values, ratios up to about 10, and episodes that end at random, by termination and by truncation."""
    draw = noise(seed)
    generator = torch.Generator().manual_seed(seed)
    chance = torch.rand(num_steps, NUM_ENVS, generator=generator)
    return {
        "ratios_TN": draw(num_steps, NUM_ENVS).exp(),
        "rewards_TN": draw(num_steps, NUM_ENVS),
        "discounts_TN": 0.9 * (chance >= end_share / 2).double(),
        "continues_TN": chance >= end_share,
        "values_SN": draw(num_steps + 1, NUM_ENVS),
    }


def column(tensor: Tensor, env: int) -> list[float]:
    return [float(value) for value in tensor[:, env]]


@given(SEEDS, NUM_STEPS, st.floats(0.0, 1.0), st.floats(0.2, 3.0), st.floats(0.2, 1.0))
def test_vtrace_equals_the_sums_of_the_paper(
    seed: int, num_steps: int, lambda_: float, clip_rho: float, clip_share: float
) -> None:
    clip_c = clip_share * clip_rho
    inputs = example(seed, num_steps)
    found = vtrace(**inputs, clip_rho=clip_rho, clip_c=clip_c, lambda_=lambda_)
    for env in range(NUM_ENVS):
        targets, advantages, weights = slow.vtrace(
            ratios=column(inputs["ratios_TN"], env),
            rewards=column(inputs["rewards_TN"], env),
            discounts=column(inputs["discounts_TN"], env),
            continues=[bool(flag) for flag in inputs["continues_TN"][:, env]],
            values=column(inputs["values_SN"], env),
            clip_rho=clip_rho,
            clip_c=clip_c,
            lambda_=lambda_,
        )
        assert column(found.value_targets_TN, env) == pytest.approx(targets, abs=1e-9)
        assert column(found.advantages_TN, env) == pytest.approx(advantages, abs=1e-9)
        assert column(found.weights_TN, env) == pytest.approx(weights, abs=1e-12)


@given(SEEDS, NUM_STEPS)
def test_at_ratio_1_and_lambda_1_the_target_is_the_n_step_return(seed: int, num_steps: int) -> None:
    inputs = example(seed, num_steps, end_share=0.0)
    inputs["ratios_TN"] = torch.ones_like(inputs["rewards_TN"])
    found = vtrace(**inputs, clip_rho=1.0, clip_c=1.0, lambda_=1.0)
    expected = inputs["values_SN"][-1]
    for t in reversed(range(num_steps)):
        expected = inputs["rewards_TN"][t] + 0.9 * expected
        torch.testing.assert_close(found.value_targets_TN[t], expected)


@given(SEEDS, NUM_STEPS, st.floats(0.0, 1.0))
def test_at_ratio_1_advantages_are_gae_and_targets_values_plus_them(
    seed: int, num_steps: int, lambda_: float
) -> None:
    inputs = example(seed, num_steps)
    ratios_TN = torch.ones_like(inputs.pop("ratios_TN"))
    expected = generalized_advantages(**inputs, lambda_=lambda_)
    found = vtrace(ratios_TN=ratios_TN, **inputs, clip_rho=1.0, clip_c=1.0, lambda_=lambda_)
    torch.testing.assert_close(found.advantages_TN, expected)
    torch.testing.assert_close(found.value_targets_TN, inputs["values_SN"][:-1] + expected)


@given(SEEDS, NUM_STEPS, st.floats(0.0, 1.0))
def test_gae_equals_the_sum_of_the_paper(seed: int, num_steps: int, lambda_: float) -> None:
    inputs = example(seed, num_steps)
    del inputs["ratios_TN"]
    found = generalized_advantages(**inputs, lambda_=lambda_)
    for env in range(NUM_ENVS):
        expected = slow.gae(
            rewards=column(inputs["rewards_TN"], env),
            discounts=column(inputs["discounts_TN"], env),
            continues=[bool(flag) for flag in inputs["continues_TN"][:, env]],
            values=column(inputs["values_SN"], env),
            lambda_=lambda_,
        )
        assert column(found, env) == pytest.approx(expected, abs=1e-9)


def run(inputs: dict[str, Tensor]) -> VtraceReturns:
    return vtrace(**inputs, clip_rho=1.0, clip_c=1.0, lambda_=0.95)


@given(SEEDS, st.integers(2, 40), st.data())
def test_nothing_after_an_episodes_end_reaches_the_steps_before_it(
    seed: int, num_steps: int, data: st.DataObject
) -> None:
    end = data.draw(st.integers(0, num_steps - 2))
    inputs = example(seed, num_steps)
    inputs["continues_TN"][end] = False
    changed = {name: tensor.clone() for name, tensor in inputs.items()}
    for name in ("rewards_TN", "ratios_TN", "discounts_TN"):
        changed[name][end + 1 :] = 7.0
    changed["values_SN"][end + 2 :] = -7.0
    before, after = run(inputs), run(changed)
    torch.testing.assert_close(before.value_targets_TN[: end + 1], after.value_targets_TN[: end + 1])
    torch.testing.assert_close(before.advantages_TN[: end + 1], after.advantages_TN[: end + 1])


def test_a_cut_episode_bootstraps_from_its_last_observation_and_a_terminated_one_does_not() -> None:
    inputs = example(0, 2, end_share=0.0)
    inputs["continues_TN"][0] = False
    inputs["discounts_TN"][0] = torch.tensor([0.9, 0.0, 0.9])
    found = vtrace(**inputs, clip_rho=100.0, clip_c=1.0, lambda_=1.0)
    values_SN, rewards_TN = inputs["values_SN"], inputs["rewards_TN"]
    errors = rewards_TN[0] + torch.tensor([0.9, 0.0, 0.9]) * values_SN[1] - values_SN[0]
    torch.testing.assert_close(found.advantages_TN[0], errors)


def test_vtrace_of_a_segment_worked_out_by_hand() -> None:
    def column_of(*values: float) -> Tensor:
        return torch.tensor(values)[:, None]

    found = vtrace(
        ratios_TN=column_of(2.0, 0.5, 1.0),
        rewards_TN=column_of(1.0, 1.0, 1.0),
        discounts_TN=column_of(0.5, 0.5, 0.5),
        continues_TN=torch.ones(3, 1, dtype=torch.bool),
        values_SN=column_of(1.0, 2.0, 3.0, 4.0),
        clip_rho=1.0,
        clip_c=1.0,
        lambda_=1.0,
    )
    assert found.value_targets_TN[:, 0].numpy().tolist() == [2.125, 2.25, 3.0]
    assert found.advantages_TN[:, 0].numpy().tolist() == [1.125, 0.5, 0.0]
    assert found.weights_TN[:, 0].numpy().tolist() == [1.0, 0.5, 1.0]


@pytest.mark.parametrize("name", ["ratios_TN", "discounts_TN", "continues_TN", "values_SN"])
def test_vtrace_names_the_tensor_of_the_wrong_shape(name: str) -> None:
    inputs = example(0, 4)
    inputs[name] = inputs[name][:, :1]  # would broadcast
    with pytest.raises(ValueError, match=name):
        run(inputs)


def test_vtrace_refuses_whole_numbers_and_crossed_limits() -> None:
    inputs = example(0, 4)
    with pytest.raises(ValueError, match="clip_rho"):
        vtrace(**inputs, clip_rho=1.0, clip_c=2.0, lambda_=1.0)
    with pytest.raises(ValueError, match="rewards_TN"):
        run({**inputs, "rewards_TN": inputs["rewards_TN"].long()})
