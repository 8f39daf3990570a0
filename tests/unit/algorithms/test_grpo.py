import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pytest
import torch
from hypothesis import given
from torch import Tensor

from tests.reference import grpo as slow
from tests.support.completions import CHOSEN, chosen_mask, completions_of, make_inputs
from tidegate.algorithms.grpo import (
    OBJECTIVES,
    GrpoInputs,
    GrpoSettings,
    grpo_loss,
    learning_rate_at,
    minibatch_rows,
    rows_with_signal,
)
from tidegate.algorithms.grpo_settings import OBJECTIVE_NAMES
from tidegate.core.errors import ConfigError

GOLDEN = Path(__file__).parents[2] / "golden" / "completion_objectives.json"
NAMES = sorted(OBJECTIVES)
# Trajectory balance has no advantage in it: test_weighted_objectives tests it on fresh data.
OF_ADVANTAGES = [name for name in NAMES if name != "tba"]
TOKEN_CLIPPED: list[str] = [
    "grpo",
    "ppo",
    "tis",
    "decoupled_ppo",
    "icepop",
    "sequence_mask",
    "opsm",
]
DRIFTS = st.floats(0.0, 1.5)
SEEDS = st.integers(0, 10_000)
# Bounds between which some completions fall and some do not.
OPEN = GrpoSettings(
    token_mean=True,
    clip_high=0.3,
    sequence_low=0.7,
    sequence_high=1.4,
    opsm_kl_max=0.1,
    cispo_high=1.5,
    icepop_high=2.0,
    value_weight=0.0,
)


def settings_of(name: str, **changes: object) -> GrpoSettings:
    return msgspec.structs.replace(OPEN, objective=name, **changes)


def loss_of(logprobs_BT: Tensor, inputs: GrpoInputs, settings: GrpoSettings) -> Tensor:
    values_BT = None if inputs.critic is None else inputs.critic.values_BT
    return grpo_loss(logprobs_BT, inputs, settings, values_BT=values_BT).total


def gradient(logprobs_BT: Tensor, inputs: GrpoInputs, settings: GrpoSettings) -> Tensor:
    (found,) = torch.autograd.grad(loss_of(logprobs_BT, inputs, settings), logprobs_BT)
    return found


def has_critic(name: str) -> bool:
    return GrpoSettings(objective=name).reads_values


@given(
    name=st.sampled_from(NAMES),
    seed=SEEDS,
    drift=DRIFTS,
    kl_weight=st.sampled_from([0.0, 0.3]),
    average=st.sampled_from([{"token_mean": True}, {"token_mean": False}, {"length_divisor_tokens": 7}]),
    proximal=st.sampled_from(["forward", "interpolated"]),
    critic=st.booleans(),
    weighted=st.booleans(),
)
def test_loss_equals_its_slow_twin(
    name: str,
    seed: int,
    drift: float,
    kl_weight: float,
    average: dict[str, object],
    proximal: str,
    critic: bool,
    weighted: bool,
) -> None:
    settings = settings_of(name, kl_weight=kl_weight, proximal=proximal, **average)
    logprobs_BT, inputs = make_inputs(seed, drift=drift, critic=critic or has_critic(name))
    if weighted:
        inputs = replace(inputs, weights_B=torch.linspace(0.5, 1.5, len(CHOSEN), dtype=torch.float64))
    found = float(loss_of(logprobs_BT, inputs, settings).detach())
    expected = slow.loss(completions_of(logprobs_BT, inputs), settings)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("proximal", ["forward", "interpolated"])
@pytest.mark.parametrize("name", NAMES)
def test_gradient_equals_finite_differences_of_the_slow_twin(name: str, proximal: str) -> None:
    settings = settings_of(name, kl_weight=0.1, proximal=proximal)
    logprobs_BT, inputs = make_inputs(seed=3, drift=0.3, critic=has_critic(name))
    found = gradient(logprobs_BT, inputs, settings)
    step = 1e-6
    for row in range(len(CHOSEN)):
        for nth, position in enumerate(map(int, chosen_mask()[row].nonzero()[:, 0])):
            sides: list[float] = []
            for sign in (1.0, -1.0):
                completions = completions_of(logprobs_BT, inputs)
                completions[row].logprobs[nth] += sign * step
                sides.append(slow.loss(completions, settings))
            expected = (sides[0] - sides[1]) / (2 * step)
            assert float(found[row, position]) == pytest.approx(expected, rel=1e-6, abs=1e-7)


@given(name=st.sampled_from(OF_ADVANTAGES), seed=SEEDS, critic=st.booleans())
def test_on_policy_every_objective_has_the_gradient_of_plain_policy_gradient(
    name: str, seed: int, critic: bool
) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=0.0, critic=critic or has_critic(name))
    found = gradient(logprobs_BT, inputs, settings_of(name))
    expected = gradient(logprobs_BT, inputs, settings_of("none"))
    assert found.any()
    torch.testing.assert_close(found, expected)


@given(name=st.sampled_from(OF_ADVANTAGES), seed=SEEDS, drift=DRIFTS)
def test_completions_without_an_advantage_push_nowhere(name: str, seed: int, drift: float) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift, critic=has_critic(name))
    flat = replace(inputs, advantages_B=torch.zeros_like(inputs.advantages_B))
    if flat.critic is not None:
        zeros_BT = torch.zeros_like(flat.critic.advantages_BT)
        flat = replace(flat, critic=replace(flat.critic, advantages_BT=zeros_BT))
    assert not gradient(logprobs_BT, flat, settings_of(name, dppo_tau=0.0)).any()


def with_other_garbage(inputs: GrpoInputs, value: float) -> GrpoInputs:
    """Every (B, T) tensor with ``value`` at tokens that were not chosen."""

    def spoilt(tensor: Tensor) -> Tensor:
        whole = tensor.ndim == 2 and tensor.dtype != torch.bool
        return tensor.masked_fill(~inputs.mask_BT, value) if whole else tensor

    changes = {
        field.name: spoilt(found)
        for field in dataclasses.fields(inputs)
        if isinstance(found := getattr(inputs, field.name), Tensor)
    }
    if inputs.critic is None:
        return replace(inputs, **changes)
    critic = replace(
        inputs.critic,
        values_BT=spoilt(inputs.critic.values_BT),
        advantages_BT=spoilt(inputs.critic.advantages_BT),
        returns_BT=spoilt(inputs.critic.returns_BT),
    )
    return replace(inputs, **changes, critic=critic)


@pytest.mark.parametrize("proximal", ["forward", "interpolated"])
@given(name=st.sampled_from(NAMES), seed=SEEDS, drift=DRIFTS)
def test_padding_and_replies_have_no_gradient_and_no_effect(
    proximal: str, name: str, seed: int, drift: float
) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift, critic=has_critic(name))
    settings = settings_of(name, kl_weight=0.1, proximal=proximal)
    found = gradient(logprobs_BT, inputs, settings)
    assert not found[~inputs.mask_BT].any()
    other_BT = logprobs_BT.detach().masked_fill(~inputs.mask_BT, -math.inf).requires_grad_()
    spoilt = with_other_garbage(inputs, 77.0)
    assert torch.equal(gradient(other_BT, spoilt, settings), found)
    assert measured(other_BT, spoilt, settings) == measured(logprobs_BT, inputs, settings)


def measured(logprobs_BT: Tensor, inputs: GrpoInputs, settings: GrpoSettings) -> dict[str, float]:
    values_BT = None if inputs.critic is None else inputs.critic.values_BT
    return grpo_loss(logprobs_BT, inputs, settings, values_BT=values_BT).metrics


@given(name=st.sampled_from(NAMES), seed=SEEDS, drift=DRIFTS)
def test_the_order_of_completions_does_not_matter(name: str, seed: int, drift: float) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift, critic=has_critic(name))
    order_B = torch.randperm(len(CHOSEN), generator=torch.Generator().manual_seed(seed))
    settings = settings_of(name, kl_weight=0.1)
    moved_BT = logprobs_BT.detach()[order_B].requires_grad_()
    found = gradient(moved_BT, inputs.rows(order_B, num_tokens=logprobs_BT.shape[1]), settings)
    torch.testing.assert_close(found, gradient(logprobs_BT, inputs, settings)[order_B])


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_group_alone_are_what_they_are_in_the_batch(name: str) -> None:
    logprobs_BT, inputs = make_inputs(seed=5, drift=0.4, critic=has_critic(name))
    settings = settings_of(name, length_divisor_tokens=1)
    whole = gradient(logprobs_BT, inputs, settings)
    for rows_B in (torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5])):
        part_BT = logprobs_BT.detach()[rows_B].requires_grad_()
        part = gradient(part_BT, inputs.rows(rows_B, num_tokens=part_BT.shape[1]), settings)
        torch.testing.assert_close(part, 2.0 * whole[rows_B])


@pytest.mark.parametrize("token_mean", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_completion_without_chosen_tokens_has_no_effect(name: str, token_mean: bool) -> None:
    logprobs_BT, inputs = make_inputs(seed=1, drift=0.4, critic=has_critic(name))
    mask_BT = inputs.mask_BT.clone()
    mask_BT[1] = False
    without, settings = replace(inputs, mask_BT=mask_BT), settings_of(name, token_mean=token_mean)
    found = gradient(logprobs_BT, without, settings)
    assert torch.isfinite(loss_of(logprobs_BT, without, settings))
    assert torch.isfinite(found).all()
    assert not found[1].any()


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
    for name in ("grpo", "tis", "decoupled_ppo", "icepop", "sequence_mask", "gspo"):
        settings = GrpoSettings(objective=name)
        assert bool(gradient(logprobs_BT, inputs, settings) == 0.0) is stopped
        assert grpo_loss(logprobs_BT, inputs, settings).metrics["clipped_fraction"] == float(stopped)


@given(name=st.sampled_from([*TOKEN_CLIPPED, "gspo"]), seed=SEEDS, drift=DRIFTS)
def test_a_wider_clip_stops_no_more_tokens(name: str, seed: int, drift: float) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift, critic=has_critic(name))
    fractions = [
        measured(logprobs_BT, inputs, settings_of(name, clip_low=clip, clip_high=clip))["clipped_fraction"]
        for clip in (0.02, 0.1, 0.4, 0.9)
    ]
    assert fractions == sorted(fractions, reverse=True)


@given(seed=SEEDS, drift=DRIFTS)
def test_clip_higher_frees_only_tokens_that_became_likelier(seed: int, drift: float) -> None:
    logprobs_BT, inputs = make_inputs(seed, drift=drift)
    narrow = gradient(logprobs_BT, inputs, settings_of("grpo", clip_high=0.2))
    wide = gradient(logprobs_BT, inputs, settings_of("grpo", clip_high=2.0))
    changed_BT = narrow != wide
    assert (logprobs_BT > inputs.behavior_logprobs_BT)[changed_BT].all()
    assert (inputs.advantages_B[:, None].expand_as(changed_BT)[changed_BT] > 0.0).all()


def test_a_constant_divisor_weighs_every_token_the_same_whatever_its_completions_length() -> None:
    logprobs_BT, inputs = make_inputs(seed=2, drift=0.0)
    equal = replace(inputs, advantages_B=torch.ones_like(inputs.advantages_B))
    found = gradient(logprobs_BT, equal, settings_of("none", length_divisor_tokens=10, token_mean=False))
    expected_N = torch.full_like(found[inputs.mask_BT], -1.0 / (len(CHOSEN) * 10))
    torch.testing.assert_close(found[inputs.mask_BT], expected_N)


def test_absurd_ratios_stay_finite() -> None:
    logprobs_BT = torch.zeros(1, 2, requires_grad=True)
    inputs = GrpoInputs(
        mask_BT=torch.ones(1, 2, dtype=torch.bool),
        advantages_B=torch.tensor([-1.0]),
        behavior_logprobs_BT=torch.tensor([[-1000.0, -1.0]]),
        proximal_logprobs_BT=torch.tensor([[-500.0, -1.0]]),
        reference_logprobs_BT=torch.tensor([[-1000.0, -1.0]]),
        rewards_B=torch.tensor([1.0]),
        group_index_B=torch.tensor([0]),
    )
    for name in NAMES:
        if has_critic(name):
            continue
        loss = grpo_loss(logprobs_BT, inputs, GrpoSettings(objective=name))
        assert torch.isfinite(loss.total), name
        assert all(math.isfinite(value) for value in loss.metrics.values()), name
        assert torch.isfinite(gradient(logprobs_BT, inputs, GrpoSettings(objective=name))).all(), name


@pytest.mark.parametrize("name", NAMES)
def test_every_objective_reports_how_far_its_data_is(name: str) -> None:
    logprobs_BT, inputs = make_inputs(seed=0, drift=0.0, critic=has_critic(name))
    metrics = measured(logprobs_BT, inputs, settings_of(name))
    assert metrics["ess"] == pytest.approx(1.0)
    assert metrics["ratio_mean"] == pytest.approx(1.0)
    assert metrics["mismatch_kl"] == pytest.approx(0.0, abs=1e-9)
    assert metrics["reference_kl"] == pytest.approx(0.0, abs=1e-9)
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
    assert "reference_kl" not in metrics


@pytest.mark.parametrize("settings", [GrpoSettings(kl_weight=0.1), GrpoSettings(objective="tba")])
def test_a_reference_that_is_needed_and_missing_is_refused(settings: GrpoSettings) -> None:
    logprobs_BT, inputs = make_inputs(seed=0, drift=0.1)
    with pytest.raises(ConfigError, match="no reference policy"):
        grpo_loss(logprobs_BT, replace(inputs, reference_logprobs_BT=None), settings)


def test_ppo_without_a_value_head_is_refused() -> None:
    logprobs_BT, inputs = make_inputs(seed=0, drift=0.1)
    with pytest.raises(ConfigError, match="no value head"):
        grpo_loss(logprobs_BT, inputs, GrpoSettings(objective="ppo"))


@pytest.mark.parametrize("critic", [True, False])
def test_values_and_their_targets_come_together(critic: bool) -> None:
    logprobs_BT, inputs = make_inputs(seed=0, drift=0.1, critic=critic)
    values_BT = None if critic else torch.zeros_like(logprobs_BT)
    with pytest.raises(ValueError, match="belong together"):
        grpo_loss(logprobs_BT, inputs, GrpoSettings(), values_BT=values_BT)


def test_the_value_head_learns_beside_the_policy_and_each_from_its_own_term() -> None:
    logprobs_BT, inputs = make_inputs(seed=4, drift=0.3, critic=True)
    assert inputs.critic is not None
    values_BT = (inputs.critic.values_BT + 0.05).requires_grad_()
    settings = settings_of("ppo", value_weight=0.7, value_clip=0.0)
    loss = grpo_loss(logprobs_BT, inputs, settings, values_BT=values_BT)
    of_logprobs, of_values = torch.autograd.grad(loss.total, (logprobs_BT, values_BT))
    torch.testing.assert_close(of_logprobs, gradient(logprobs_BT, inputs, settings))
    expected = 0.7 * (values_BT - inputs.critic.returns_BT) / inputs.mask_BT.sum()
    torch.testing.assert_close(of_values, expected.detach().masked_fill(~inputs.mask_BT, 0.0))
    assert {"value_loss", "value_clipped_fraction", "explained_variance"} <= loss.metrics.keys()


def test_a_kl_as_loss_pulls_towards_the_reference() -> None:
    logprobs_BT, inputs = make_inputs(seed=0, drift=0.0)
    higher = replace(
        inputs,
        advantages_B=torch.zeros_like(inputs.advantages_B),
        reference_logprobs_BT=inputs.behavior_logprobs_BT + 0.5,
    )
    found = gradient(logprobs_BT, higher, GrpoSettings(kl_weight=1.0))
    assert (found[inputs.mask_BT] < 0.0).all()
    # In the reward it is a matter of the advantages alone.
    assert not gradient(logprobs_BT, higher, GrpoSettings(kl_weight=1.0, kl_in="reward")).any()


def golden_losses() -> dict[str, dict[str, float]]:
    """Loss, sum of the gradient's magnitudes and clipped share of each objective on one fixed batch."""
    found: dict[str, dict[str, float]] = {}
    for name in NAMES:
        logprobs_BT, inputs = make_inputs(seed=7, drift=0.4, critic=has_critic(name))
        settings = settings_of(name, kl_weight=0.05)
        found[name] = {
            "loss": float(loss_of(logprobs_BT, inputs, settings).detach()),
            "gradient": float(gradient(logprobs_BT, inputs, settings).abs().sum()),
            "clipped_fraction": measured(logprobs_BT, inputs, settings)["clipped_fraction"],
        }
    return found


def test_losses_are_what_they_always_were() -> None:
    golden = json.loads(GOLDEN.read_text())
    found = golden_losses()
    assert found.keys() == golden.keys(), (
        f"write the numbers of golden_losses() to tests/golden/{GOLDEN.name}"
    )
    for name, figures in found.items():
        assert figures == pytest.approx(golden[name], rel=1e-6), name


def test_every_name_that_a_run_file_may_use_has_its_objective() -> None:
    assert set(OBJECTIVE_NAMES) == set(OBJECTIVES)


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
