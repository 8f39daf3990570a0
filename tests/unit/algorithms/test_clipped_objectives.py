import itertools
import math
from dataclasses import replace

import hypothesis.strategies as st
import torch
from hypothesis import given
from torch import Tensor

from tests.support.completions import floats, make_inputs
from tidegate.algorithms.grpo import GrpoInputs, GrpoSettings, grpo_loss
from tidegate.algorithms.grpo_settings import DECOUPLED_WEIGHT_MAX, ObjectiveName

SEEDS = st.integers(0, 10_000)
DRIFTS = st.floats(0.0, 1.5)


def gradient(logprobs_BT: Tensor, inputs: GrpoInputs, settings: GrpoSettings) -> Tensor:
    (found,) = torch.autograd.grad(grpo_loss(logprobs_BT, inputs, settings).total, logprobs_BT)
    return found


def weights_of(inputs: GrpoInputs) -> Tensor:
    assert inputs.proximal_logprobs_BT is not None
    log_weights_BT = inputs.proximal_logprobs_BT - inputs.behavior_logprobs_BT
    return log_weights_BT.masked_fill(~inputs.mask_BT, 0.0).exp()


@given(seed=SEEDS, drift=DRIFTS)
def test_truncated_and_untruncated_weights_agree_below_the_cap(seed: int, drift: float) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift)
    truncated = gradient(logprobs_BT, inputs, GrpoSettings(objective="tis", importance_cap=2.0))
    untruncated = gradient(logprobs_BT, inputs, GrpoSettings(objective="decoupled_ppo"))
    weights_BT = weights_of(inputs)
    scale_BT = 2.0 / weights_BT.clamp_min(2.0)
    below_own_limit = inputs.mask_BT & (weights_BT < 50.0)
    torch.testing.assert_close(truncated[below_own_limit], (untruncated * scale_BT)[below_own_limit])


def test_an_untruncated_weight_is_still_no_absurd_one() -> None:
    inputs = GrpoInputs(
        mask_BT=torch.ones(1, 2, dtype=torch.bool),
        advantages_B=torch.tensor([1.0]),
        behavior_logprobs_BT=torch.tensor([[-9.0, -3.0]]),
        proximal_logprobs_BT=torch.tensor([[-1.0, -1.0]]),
    )
    logprobs_BT = torch.full((1, 2), -1.0, requires_grad=True)
    found = gradient(logprobs_BT, inputs, GrpoSettings(objective="decoupled_ppo"))
    torch.testing.assert_close(found, -torch.tensor([[DECOUPLED_WEIGHT_MAX, math.exp(2.0)]]) / 2.0)


@given(seed=SEEDS, drift=DRIFTS)
def test_a_smaller_cap_never_makes_a_gradient_larger(seed: int, drift: float) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift)
    gradients = [
        gradient(logprobs_BT, inputs, GrpoSettings(objective="tis", importance_cap=cap)).abs()
        for cap in (0.5, 1.0, 2.0, 5.0)
    ]
    for smaller, larger in itertools.pairwise(gradients):
        assert (smaller <= larger + 1e-12).all()


@given(seed=SEEDS, drift=DRIFTS)
def test_icepop_is_decoupled_ppo_on_the_tokens_inside_its_bounds(seed: int, drift: float) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift)
    found = gradient(logprobs_BT, inputs, GrpoSettings(objective="icepop", icepop_low=0.5, icepop_high=5.0))
    weights_BT = weights_of(inputs)
    inside_BT = (weights_BT >= 0.5) & (weights_BT <= 5.0)
    expected = gradient(logprobs_BT, inputs, GrpoSettings(objective="decoupled_ppo")) * inside_BT
    torch.testing.assert_close(found, expected)


@given(seed=SEEDS, drift=DRIFTS, name=st.sampled_from(["icepop", "sequence_mask"]))
def test_wider_bounds_mask_no_more_tokens(seed: int, drift: float, name: ObjectiveName) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift)
    fractions: list[float] = []
    for width in (1.01, 1.2, 2.0, 50.0):
        settings = GrpoSettings(
            objective=name,
            icepop_low=1 / width,
            icepop_high=width,
            sequence_low=1 / width,
            sequence_high=width,
        )
        fractions.append(grpo_loss(logprobs_BT, inputs, settings).metrics["clipped_fraction"])
    assert fractions == sorted(fractions, reverse=True)


@given(seed=SEEDS, drift=DRIFTS)
def test_a_sequence_mask_removes_whole_completions_and_ignores_single_tokens(seed: int, drift: float) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift)
    settings = GrpoSettings(
        objective="sequence_mask", sequence_low=0.8, sequence_high=1.25, clip_low=0.9, clip_high=10.0
    )
    found = gradient(logprobs_BT, inputs, settings)
    means_B = (weights_of(inputs).log() * inputs.mask_BT).sum(dim=1) / inputs.mask_BT.sum(dim=1)
    kept_B = (means_B.exp() >= 0.8) & (means_B.exp() <= 1.25)
    assert not found[~kept_B].any()
    wide = gradient(
        logprobs_BT,
        inputs,
        GrpoSettings(
            objective="sequence_mask", sequence_low=0.0, sequence_high=1000.0, clip_low=0.9, clip_high=10.0
        ),
    )
    torch.testing.assert_close(found[kept_B], wide[kept_B])


@given(seed=SEEDS, drift=DRIFTS)
def test_opsm_leaves_out_bad_completions_that_became_less_likely_and_no_others(
    seed: int, drift: float
) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift)
    found = gradient(logprobs_BT, inputs, GrpoSettings(objective="opsm", opsm_kl_max=0.05))
    plain = gradient(logprobs_BT, inputs, GrpoSettings(objective="grpo"))
    drifts_BT = (inputs.behavior_logprobs_BT - logprobs_BT.detach()).masked_fill(~inputs.mask_BT, 0.0)
    gone_B = drifts_BT.sum(dim=1) / inputs.mask_BT.sum(dim=1) > 0.05
    left_out_B = gone_B & (inputs.advantages_B < 0.0)
    assert not found[left_out_B].any()
    torch.testing.assert_close(found[~left_out_B], plain[~left_out_B])


@given(seed=SEEDS, drift=DRIFTS)
def test_gspo_clips_all_tokens_of_a_completion_or_none(seed: int, drift: float) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift)
    found = gradient(logprobs_BT, inputs, GrpoSettings(objective="gspo"))
    for row, mask in zip(found, inputs.mask_BT, strict=True):
        assert len(set(floats(row[mask]))) == 1


@given(seed=SEEDS, drift=DRIFTS)
def test_decoupled_ppo_on_data_of_the_newest_version_is_ppo(seed: int, drift: float) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift)
    fresh = replace(inputs, proximal_logprobs_BT=inputs.behavior_logprobs_BT)
    expected = gradient(logprobs_BT, fresh, GrpoSettings(objective="grpo"))
    for name in ("tis", "decoupled_ppo", "icepop", "sequence_mask"):
        torch.testing.assert_close(gradient(logprobs_BT, fresh, GrpoSettings(objective=name)), expected)
    # The same without that pass: a token that is no version old has μ for π_prox.
    untold = replace(
        inputs, proximal_logprobs_BT=None, version_gap_BT=torch.zeros_like(inputs.mask_BT, dtype=torch.int64)
    )
    interpolated = GrpoSettings(objective="decoupled_ppo", proximal="interpolated")
    torch.testing.assert_close(gradient(logprobs_BT, untold, interpolated), expected)
