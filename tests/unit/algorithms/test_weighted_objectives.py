from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from tests.support.completions import GROUPS, make_inputs
from tidegate.algorithms.advantages import group_advantages
from tidegate.algorithms.grpo import GrpoInputs, GrpoSettings, grpo_loss

SEEDS = st.integers(0, 10_000)
DRIFTS = st.floats(0.0, 1.5)
TBA = GrpoSettings(objective="tba", tba_beta=0.5)


def gradient(logprobs_BT: Tensor, inputs: GrpoInputs, settings: GrpoSettings) -> Tensor:
    (found,) = torch.autograd.grad(grpo_loss(logprobs_BT, inputs, settings).total, logprobs_BT)
    return found


def ratios_of(logprobs_BT: Tensor, inputs: GrpoInputs) -> Tensor:
    log_ratios_BT = (logprobs_BT.detach() - inputs.behavior_logprobs_BT).masked_fill(~inputs.mask_BT, 0.0)
    return log_ratios_BT.exp()


@given(seed=SEEDS, drift=DRIFTS)
def test_cispo_is_plain_policy_gradient_times_a_bounded_ratio(seed: int, drift: float) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift)
    settings = GrpoSettings(objective="cispo", cispo_low=0.4, cispo_high=1.5)
    weights_BT = ratios_of(logprobs_BT, inputs).clamp(0.4, 1.5)
    expected = gradient(logprobs_BT, inputs, GrpoSettings(objective="none")) * weights_BT
    torch.testing.assert_close(gradient(logprobs_BT, inputs, settings), expected)


@given(seed=SEEDS, drift=DRIFTS)
def test_cispo_stops_no_token_and_marks_truncated_weights(seed: int, drift: float) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift)
    cut: list[float] = []
    for cap in (1.0, 1.5, 4.0, 1000.0):
        settings = GrpoSettings(objective="cispo", cispo_high=cap)
        assert gradient(logprobs_BT, inputs, settings)[inputs.mask_BT].all()
        cut.append(grpo_loss(logprobs_BT, inputs, settings).metrics["clipped_fraction"])
    assert cut == sorted(cut, reverse=True)


@given(seed=SEEDS, drift=DRIFTS)
def test_topr_takes_good_completions_as_they_are_and_bad_ones_while_they_are_likely(
    seed: int, drift: float
) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift)
    found = gradient(logprobs_BT, inputs, GrpoSettings(objective="topr"))
    plain = gradient(logprobs_BT, inputs, GrpoSettings(objective="none"))
    whole_B = ratios_of(logprobs_BT, inputs).prod(dim=1)
    bad_B = inputs.advantages_B < 0.0
    torch.testing.assert_close(found[~bad_B], plain[~bad_B])
    torch.testing.assert_close(found[bad_B], plain[bad_B] * whole_B[bad_B, None].clamp_max(1.0))


@pytest.mark.parametrize(
    ("probability", "advantage", "stopped"),
    [(0.75, 1.0, True), (0.75, -1.0, False), (0.25, -1.0, True), (0.25, 1.0, False), (0.6, 1.0, False)],
)
def test_dppo_stops_by_probability_and_only_the_way_the_advantage_pushes(
    probability: float, advantage: float, stopped: bool
) -> None:
    behavior_BT = torch.log(torch.tensor([[0.5]]))
    inputs = GrpoInputs(
        mask_BT=torch.ones(1, 1, dtype=torch.bool),
        advantages_B=torch.tensor([advantage]),
        behavior_logprobs_BT=behavior_BT,
    )
    logprobs_BT = torch.log(torch.tensor([[probability]])).requires_grad_()
    settings = GrpoSettings(objective="dppo", dppo_delta=0.2, dppo_tau=0.0)
    assert bool(gradient(logprobs_BT, inputs, settings) == 0.0) is stopped
    assert grpo_loss(logprobs_BT, inputs, settings).metrics["clipped_fraction"] == float(stopped)


def test_dppo_lets_a_rare_token_grow_manyfold_where_a_ratio_clip_would_not() -> None:
    inputs = GrpoInputs(
        mask_BT=torch.ones(1, 1, dtype=torch.bool),
        advantages_B=torch.tensor([1.0]),
        behavior_logprobs_BT=torch.log(torch.tensor([[0.001]])),
    )
    logprobs_BT = torch.log(torch.tensor([[0.01]])).requires_grad_()
    assert gradient(logprobs_BT, inputs, GrpoSettings(objective="dppo")).any()
    assert not gradient(logprobs_BT, inputs, GrpoSettings(objective="grpo")).any()


def test_dppo_draws_what_it_stops_back_to_the_behaviour_policy() -> None:
    inputs = GrpoInputs(
        mask_BT=torch.ones(1, 2, dtype=torch.bool),
        advantages_B=torch.tensor([1.0]),
        behavior_logprobs_BT=torch.log(torch.tensor([[0.5, 0.5]])),
    )
    logprobs_BT = torch.log(torch.tensor([[0.9, 0.95]])).requires_grad_()
    found = gradient(logprobs_BT, inputs, GrpoSettings(objective="dppo", dppo_tau=0.01))
    assert (found > 0.0).all()
    assert float(found[0, 1]) > float(found[0, 0])


@given(seed=SEEDS)
def test_at_the_reference_balance_is_plain_policy_gradient_with_centred_rewards(seed: int) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=0.0)
    assert inputs.rewards_B is not None
    centred = replace(
        inputs,
        advantages_B=group_advantages(inputs.rewards_B, torch.tensor(GROUPS), normalise_by_std=False),
    )
    # A constant divisor of one token: the sum over tokens, averaged over completions.
    plain = gradient(logprobs_BT, centred, GrpoSettings(objective="none", length_divisor_tokens=1))
    torch.testing.assert_close(gradient(logprobs_BT, inputs, TBA), 2.0 / TBA.tba_beta * plain)


@given(seed=SEEDS, drift=DRIFTS)
def test_balance_is_met_by_the_reference_tilted_by_rewards_whatever_policy_sampled(
    seed: int, drift: float
) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift)
    assert inputs.rewards_B is not None
    assert inputs.reference_logprobs_BT is not None
    # log π = log π_ref + R/β − log Z, spread over the completion's tokens; Z is anything.
    log_z_B = torch.tensor([0.3, -1.7], dtype=torch.float64)[torch.tensor(GROUPS)]
    tilt_B = inputs.rewards_B / TBA.tba_beta - log_z_B
    share_B = tilt_B / inputs.mask_BT.sum(dim=1)
    tilted_BT = (inputs.reference_logprobs_BT + share_B[:, None]).requires_grad_()
    assert float(grpo_loss(tilted_BT, inputs, TBA).total.detach()) == pytest.approx(0.0, abs=1e-12)
    assert gradient(tilted_BT, inputs, TBA).abs().max() < 1e-9
    elsewhere = replace(inputs, behavior_logprobs_BT=inputs.behavior_logprobs_BT - 1.0)
    assert torch.equal(gradient(logprobs_BT, inputs, TBA), gradient(logprobs_BT, elsewhere, TBA))


def test_balance_learns_from_a_group_whose_rewards_are_equal() -> None:
    logprobs_BT, inputs = make_inputs(0, drift=0.5)
    equal = replace(inputs, rewards_B=torch.ones_like(inputs.advantages_B))
    assert gradient(logprobs_BT, equal, TBA).any()


def test_balance_goes_by_the_group_whatever_its_number() -> None:
    logprobs_BT, inputs = make_inputs(0, drift=0.5)
    renumbered = replace(inputs, group_index_B=torch.tensor(GROUPS) * 5 + 2)
    assert torch.equal(gradient(logprobs_BT, renumbered, TBA), gradient(logprobs_BT, inputs, TBA))


@pytest.mark.parametrize("missing", ["rewards_B", "group_index_B"])
def test_balance_without_rewards_or_groups_is_refused(missing: str) -> None:
    logprobs_BT, inputs = make_inputs(0, drift=0.5)
    with pytest.raises(ValueError, match="needs rewards_B"):
        grpo_loss(logprobs_BT, replace(inputs, **{missing: None}), TBA)
