import math
from typing import get_args

import hypothesis.strategies as st
import msgspec
import pytest
import torch
from hypothesis import given
from torch import Tensor

from tests.reference import grpo as slow
from tidegate.algorithms.grpo import (
    OBJECTIVES,
    GrpoInputs,
    GrpoSettings,
    ObjectiveName,
    grpo_loss,
    learning_rate_at,
    minibatch_rows,
    rows_with_signal,
)
from tidegate.core.errors import ConfigError

NAMES: list[ObjectiveName] = ["grpo", "tis", "decoupled_ppo", "gspo", "none"]
CORRECTED = [name for name in NAMES if name != "none"]
LENGTHS = (3, 1, 4, 2, 4, 3)
DRIFTS = st.floats(0.0, 1.5)


def make_inputs(seed: int, *, drift: float) -> tuple[Tensor, GrpoInputs]:
    """Logprobs under θ that want a gradient, and inputs whose policies are ``drift`` nats apart; garbage on padding."""
    generator = torch.Generator().manual_seed(seed)

    def noise() -> Tensor:
        return torch.randn(len(LENGTHS), max(LENGTHS), dtype=torch.float64, generator=generator)

    mask_BT = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    behavior = -noise().abs() - 0.1
    proximal = behavior + drift * noise()
    logprobs = proximal + drift * noise()
    inputs = GrpoInputs(
        mask_BT=mask_BT,
        advantages_B=torch.randn(len(LENGTHS), dtype=torch.float64, generator=generator),
        behavior_logprobs_BT=behavior.masked_fill(~mask_BT, 0.0),
        proximal_logprobs_BT=proximal.masked_fill(~mask_BT, 5.0),
        reference_logprobs_BT=(behavior + drift * noise()).masked_fill(~mask_BT, -7.0),
    )
    return logprobs.masked_fill(~mask_BT, 300.0).requires_grad_(), inputs


def gradient(logprobs_BT: Tensor, inputs: GrpoInputs, settings: GrpoSettings) -> Tensor:
    (found,) = torch.autograd.grad(grpo_loss(logprobs_BT, inputs, settings).total, logprobs_BT)
    return found


def ragged(values_BT: Tensor) -> list[list[float]]:
    values = values_BT.detach()
    return [[float(values[row, t]) for t in range(length)] for row, length in enumerate(LENGTHS)]


def slow_loss(logprobs: list[list[float]], inputs: GrpoInputs, settings: GrpoSettings) -> float:
    assert inputs.reference_logprobs_BT is not None
    return slow.loss(
        settings.objective,
        logprobs=logprobs,
        proximal=ragged(inputs.proximal_logprobs_BT),
        behavior=ragged(inputs.behavior_logprobs_BT),
        reference=ragged(inputs.reference_logprobs_BT),
        advantages=[float(advantage) for advantage in inputs.advantages_B],
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        importance_cap=settings.importance_cap,
        kl_weight=settings.kl_weight,
        token_mean=settings.token_mean,
    )


@given(
    name=st.sampled_from(NAMES),
    seed=st.integers(0, 10_000),
    drift=DRIFTS,
    kl_weight=st.sampled_from([0.0, 0.3]),
    token_mean=st.booleans(),
)
def test_loss_equals_its_slow_twin(
    name: ObjectiveName, seed: int, drift: float, kl_weight: float, token_mean: bool
) -> None:
    settings = GrpoSettings(
        objective=name, clip_low=0.2, clip_high=0.3, kl_weight=kl_weight, token_mean=token_mean
    )
    logprobs_BT, inputs = make_inputs(seed, drift=drift)
    found = float(grpo_loss(logprobs_BT, inputs, settings).total.detach())
    assert found == pytest.approx(slow_loss(ragged(logprobs_BT), inputs, settings), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_equals_finite_differences_of_the_slow_twin(name: ObjectiveName) -> None:
    settings = GrpoSettings(objective=name, kl_weight=0.1)
    logprobs_BT, inputs = make_inputs(seed=3, drift=0.3)
    found = gradient(logprobs_BT, inputs, settings)
    values = ragged(logprobs_BT)
    step = 1e-6
    for row, length in enumerate(LENGTHS):
        for position in range(length):
            sides: list[float] = []
            for sign in (1.0, -1.0):
                moved = [list(row_values) for row_values in values]
                moved[row][position] += sign * step
                sides.append(slow_loss(moved, inputs, settings))
            assert float(found[row, position]) == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=1e-7)


@given(name=st.sampled_from(CORRECTED), seed=st.integers(0, 10_000))
def test_on_policy_every_objective_has_the_gradient_of_plain_policy_gradient(
    name: ObjectiveName, seed: int
) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=0.0)
    found = gradient(logprobs_BT, inputs, GrpoSettings(objective=name))
    expected = gradient(logprobs_BT, inputs, GrpoSettings(objective="none"))
    torch.testing.assert_close(found, expected)


@given(name=st.sampled_from(NAMES), seed=st.integers(0, 10_000), drift=DRIFTS)
def test_groups_without_differences_have_no_gradient(name: ObjectiveName, seed: int, drift: float) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift)
    flat = GrpoInputs(
        mask_BT=inputs.mask_BT,
        advantages_B=torch.zeros_like(inputs.advantages_B),
        behavior_logprobs_BT=inputs.behavior_logprobs_BT,
        proximal_logprobs_BT=inputs.proximal_logprobs_BT,
    )
    assert not gradient(logprobs_BT, flat, GrpoSettings(objective=name)).any()


@given(name=st.sampled_from(NAMES), seed=st.integers(0, 10_000), drift=DRIFTS)
def test_padding_has_no_gradient_and_no_say(name: ObjectiveName, seed: int, drift: float) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift)
    settings = GrpoSettings(objective=name, kl_weight=0.1)
    found = gradient(logprobs_BT, inputs, settings)
    assert not found[~inputs.mask_BT].any()
    other = logprobs_BT.detach().masked_fill(~inputs.mask_BT, -math.inf).requires_grad_()
    assert torch.equal(gradient(other, inputs, settings), found)


@given(seed=st.integers(0, 10_000), drift=DRIFTS)
def test_truncated_and_untruncated_weights_agree_below_the_cap(seed: int, drift: float) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift)
    truncated = gradient(logprobs_BT, inputs, GrpoSettings(objective="tis", importance_cap=2.0))
    untruncated = gradient(logprobs_BT, inputs, GrpoSettings(objective="decoupled_ppo"))
    weights_BT = (inputs.proximal_logprobs_BT - inputs.behavior_logprobs_BT).exp()
    scale_BT = torch.where(inputs.mask_BT, 2.0 / weights_BT.clamp_min(2.0), torch.ones_like(weights_BT))
    below_own_limit = inputs.mask_BT & (weights_BT < 50.0)
    torch.testing.assert_close(truncated[below_own_limit], (untruncated * scale_BT)[below_own_limit])


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "stopped"),
    [(0.5, 1.0, True), (0.5, -1.0, False), (-0.5, -1.0, True), (-0.5, 1.0, False), (0.1, 1.0, False)],
)
def test_clip_stops_only_what_moved_too_far_the_way_its_advantage_pushes(
    log_ratio: float, advantage: float, stopped: bool
) -> None:
    behavior = torch.full((1, 1), -1.0)
    logprobs_BT = (behavior + log_ratio).requires_grad_()
    inputs = GrpoInputs(
        mask_BT=torch.ones(1, 1, dtype=torch.bool),
        advantages_B=torch.tensor([advantage]),
        behavior_logprobs_BT=behavior,
        proximal_logprobs_BT=behavior,
    )
    for name in ("grpo", "tis", "decoupled_ppo", "gspo"):
        settings = GrpoSettings(objective=name)
        assert bool(gradient(logprobs_BT, inputs, settings) == 0.0) is stopped
        assert grpo_loss(logprobs_BT, inputs, settings).metrics["clipped_fraction"] == float(stopped)


def test_absurd_ratios_stay_finite() -> None:
    logprobs_BT = torch.zeros(1, 2, requires_grad=True)
    inputs = GrpoInputs(
        mask_BT=torch.ones(1, 2, dtype=torch.bool),
        advantages_B=torch.tensor([-1.0]),
        behavior_logprobs_BT=torch.tensor([[-1000.0, -1.0]]),
        proximal_logprobs_BT=torch.tensor([[-500.0, -1.0]]),
    )
    for name in NAMES:
        loss = grpo_loss(logprobs_BT, inputs, GrpoSettings(objective=name))
        assert torch.isfinite(loss.total)
        assert all(math.isfinite(value) for value in loss.metrics.values())
        assert torch.isfinite(gradient(logprobs_BT, inputs, GrpoSettings(objective=name))).all()


def test_fresh_data_has_full_effective_sample_size_and_no_mismatch() -> None:
    logprobs_BT, inputs = make_inputs(seed=0, drift=0.0)
    metrics = grpo_loss(logprobs_BT, inputs, GrpoSettings()).metrics
    assert metrics["ess"] == pytest.approx(1.0)
    assert metrics["ratio_mean"] == pytest.approx(1.0)
    assert metrics["mismatch_kl"] == pytest.approx(0.0, abs=1e-9)
    assert metrics["clipped_fraction"] == 0.0


def test_stale_data_shows_in_the_metrics() -> None:
    behavior = torch.log(torch.tensor([[0.5, 0.25]]))
    inputs = GrpoInputs(
        mask_BT=torch.ones(1, 2, dtype=torch.bool),
        advantages_B=torch.tensor([1.0]),
        behavior_logprobs_BT=behavior,
        proximal_logprobs_BT=behavior,
    )
    # Ratios 1/2 and 2.
    metrics = grpo_loss(torch.log(torch.tensor([[0.25, 0.5]])), inputs, GrpoSettings()).metrics
    assert metrics["ratio_mean"] == pytest.approx(1.25)
    assert metrics["ess"] == pytest.approx(2.5**2 / (2 * 4.25))
    assert metrics["mismatch_kl"] == pytest.approx(0.25)
    assert metrics["clipped_fraction"] == pytest.approx(0.5)


def test_kl_without_a_reference_is_refused() -> None:
    logprobs_BT, inputs = make_inputs(seed=0, drift=0.1)
    bare = GrpoInputs(
        inputs.mask_BT, inputs.advantages_B, inputs.behavior_logprobs_BT, inputs.proximal_logprobs_BT
    )
    with pytest.raises(ConfigError, match="no reference policy"):
        grpo_loss(logprobs_BT, bare, GrpoSettings(kl_weight=0.1))


def test_kl_pulls_towards_the_reference() -> None:
    logprobs_BT, inputs = make_inputs(seed=0, drift=0.0)
    assert inputs.reference_logprobs_BT is not None
    higher = GrpoInputs(
        inputs.mask_BT,
        torch.zeros_like(inputs.advantages_B),
        inputs.behavior_logprobs_BT,
        inputs.proximal_logprobs_BT,
        reference_logprobs_BT=inputs.behavior_logprobs_BT + 0.5,
    )
    found = gradient(logprobs_BT, higher, GrpoSettings(kl_weight=1.0))
    assert (found[inputs.mask_BT] < 0.0).all()


def test_every_name_that_a_run_file_may_use_has_its_objective() -> None:
    assert set(get_args(ObjectiveName)) == set(OBJECTIVES)


@pytest.mark.parametrize(
    "section", [{"clip_lo": 0.2}, {"clip_low": 0.0}, {"objective": "pp0"}, {"minibatches": 0}, {"beta2": 1.0}]
)
def test_settings_refuse_typos_and_values_out_of_range(section: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(section, GrpoSettings)


def assert_positions(found: Tensor, expected: list[int]) -> None:
    assert torch.equal(found, torch.tensor(expected, dtype=torch.int64))


def test_learning_rate_rises_falls_and_stays() -> None:
    settings = GrpoSettings(
        learning_rate=1.0, warmup_versions=10, anneal_versions=110, learning_rate_final_share=0.1
    )
    rates = [learning_rate_at(settings, update=update) for update in (1, 5, 10, 60, 110, 5000)]
    assert rates == pytest.approx([0.1, 0.5, 1.0, 0.55, 0.1, 0.1])
    constant = GrpoSettings(learning_rate=1.0, warmup_versions=0, anneal_versions=0)
    assert learning_rate_at(constant, update=1) == learning_rate_at(constant, update=9999) == 1.0


def test_rows_of_groups_with_any_signal_are_kept_whole() -> None:
    # Group 1 is a third each time: its mean rounds, its rewards are still all the same.
    rewards_B = torch.tensor([0.0, 1.0, 0.0, 1 / 3, 1 / 3, 1 / 3, -1.0, -1.0, 0.5])
    group_index_B = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    assert_positions(rows_with_signal(rewards_B, group_index_B), [0, 1, 2, 6, 7, 8])
    assert_positions(rows_with_signal(torch.ones(9), group_index_B), [])


@given(num_groups=st.integers(1, 30), minibatches=st.integers(1, 10), seed=st.integers(0, 1000))
def test_minibatches_are_whole_groups_and_together_everything(
    num_groups: int, minibatches: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    group_index_B = torch.arange(num_groups).repeat(3)
    parts = minibatch_rows(group_index_B, minibatches=minibatches, generator=generator)
    assert len(parts) == min(minibatches, num_groups)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(3 * num_groups))
    groups_in_part = [torch.bincount(group_index_B[part], minlength=num_groups) for part in parts]
    # Each group has all of its three rows in one part, and parts differ by at most one group.
    assert all(set(counts.numpy()) <= {0, 3} for counts in groups_in_part)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 3
