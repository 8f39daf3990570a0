from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from tests.support.completions import chosen_mask, make_inputs
from tidegate.algorithms.completion_tokens import completion_tokens
from tidegate.algorithms.grpo_settings import GrpoSettings

SEEDS = st.integers(0, 10_000)
INTERPOLATED = GrpoSettings(objective="decoupled_ppo", proximal="interpolated")


@given(seed=SEEDS)
def test_an_interpolated_policy_lies_between_the_one_that_sampled_and_theta(seed: int) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=1.0)
    found = completion_tokens(logprobs_BT, inputs, INTERPOLATED)
    low_BT = torch.minimum(found.logprobs_BT, found.behavior_BT)
    high_BT = torch.maximum(found.logprobs_BT, found.behavior_BT)
    assert ((found.proximal_BT >= low_BT - 1e-12) & (found.proximal_BT <= high_BT + 1e-12)).all()
    assert not found.proximal_BT.requires_grad


def test_interpolation_goes_by_versions() -> None:
    logprobs_BT, inputs = make_inputs(0, drift=1.0)
    mask_BT = chosen_mask()
    logprobs_BT = logprobs_BT.detach()
    for gap, share in ((0, 0.0), (1, 0.5), (3, 0.75), (10**6, 1.0)):
        gaps_BT = torch.full(tuple(mask_BT.shape), gap)
        found = completion_tokens(logprobs_BT, replace(inputs, version_gap_BT=gaps_BT), INTERPOLATED)
        expected_BT = inputs.behavior_logprobs_BT + share * (logprobs_BT - inputs.behavior_logprobs_BT)
        torch.testing.assert_close(found.proximal_BT[mask_BT], expected_BT[mask_BT], atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("name", ["tis", "decoupled_ppo", "icepop", "sequence_mask"])
def test_without_a_forward_pass_its_result_is_not_read(name: str) -> None:
    logprobs_BT, inputs = make_inputs(1, drift=1.0)
    settings = GrpoSettings(objective=name, proximal="interpolated")
    assert settings.reads_version_gap
    assert not settings.reads_proximal
    found = completion_tokens(logprobs_BT, replace(inputs, proximal_logprobs_BT=None), settings)
    with_it = completion_tokens(logprobs_BT, inputs, settings)
    assert torch.equal(found.proximal_BT, with_it.proximal_BT)


def test_what_an_objective_reads_must_be_there() -> None:
    logprobs_BT, inputs = make_inputs(0, drift=0.1)
    with pytest.raises(ValueError, match="needs version_gap_BT"):
        completion_tokens(logprobs_BT, replace(inputs, version_gap_BT=None), INTERPOLATED)
    with pytest.raises(ValueError, match="tis needs proximal_logprobs_BT"):
        completion_tokens(logprobs_BT, replace(inputs, proximal_logprobs_BT=None), GrpoSettings())
    with pytest.raises(ValueError, match="shape"):
        completion_tokens(logprobs_BT[:, :2], inputs, GrpoSettings())
    with pytest.raises(ValueError, match="advantages_B has shape"):
        completion_tokens(logprobs_BT, replace(inputs, advantages_B=inputs.mask_BT.double()), GrpoSettings())


def test_tokens_that_were_not_chosen_are_zero() -> None:
    logprobs_BT, inputs = make_inputs(0, drift=0.3, critic=True)
    found = completion_tokens(logprobs_BT, inputs, GrpoSettings())
    assert found.reference_BT is not None
    for tensor_BT in (
        found.logprobs_BT,
        found.behavior_BT,
        found.proximal_BT,
        found.reference_BT,
        found.advantages_BT,
    ):
        assert not tensor_BT[~chosen_mask()].any()
        assert tensor_BT[chosen_mask()].any()
