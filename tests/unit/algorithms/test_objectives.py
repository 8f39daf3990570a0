import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.reference import actor_critic as slow
from tests.support.segments import NUM_ACTIONS, random_segment
from tidegate.algorithms.objectives import (
    OBJECTIVES,
    ActorCriticSettings,
    ObjectiveName,
    PreparedUpdate,
    actor_critic_loss,
    entropy_weight_at,
    learning_rate_at,
    minibatch_indices,
    prepare_update,
)
from tidegate.algorithms.segment_batch import SegmentBatch, stack_segments
from tidegate.core.records import Array
from tidegate.models.categorical import Categorical

GOLDEN = Path(__file__).parents[2] / "golden" / "actor_critic_losses.json"
NAMES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
NUM_STEPS, NUM_ENVS = 12, 3
ACTIONS = Categorical(NUM_ACTIONS)
PLAIN = ActorCriticSettings(normalise_advantages=False, epochs=1, minibatches=1)


def recipe(name: ObjectiveName) -> ActorCriticSettings:
    """The defaults, with as few gradient steps as the objective allows."""
    steps = {"epochs": 1, "minibatches": 1} if name == "a2c" else {}
    return msgspec.convert({"objective": name, **steps}, ActorCriticSettings)


def outputs(seed: int, *, drift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Logits and values of a policy; one ``drift`` away from the policy of the same seed."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((NUM_STEPS, NUM_ENVS, NUM_ACTIONS))
    values = rng.standard_normal((NUM_STEPS + 1, NUM_ENVS))
    logits += drift * rng.standard_normal(logits.shape)
    values += drift * rng.standard_normal(values.shape)
    return torch.tensor(logits, dtype=torch.float32), torch.tensor(values, dtype=torch.float32)


def batch_of(segment: dict[str, Array]) -> SegmentBatch:
    return stack_segments([segment], device=torch.device("cpu"))


def on_policy(segment: dict[str, Array], logits_TNA: Tensor) -> dict[str, Array]:
    """The same segment, as if the policy of these logits had acted."""
    logprobs = torch.log_softmax(logits_TNA, dim=-1).numpy()
    actions = segment["actions"].astype(np.int64)[..., None]
    return {**segment, "behavior_logprobs": np.take_along_axis(logprobs, actions, axis=-1)[..., 0]}


def prepare(
    segment: dict[str, Array], logits_TNA: Tensor, values_SN: Tensor, settings: ActorCriticSettings
) -> PreparedUpdate:
    batch = batch_of(segment)
    logprobs_TN = ACTIONS.logprobs(logits_TNA, batch.actions_TN, torch)
    return prepare_update(batch, logprobs_TN=logprobs_TN, values_SN=values_SN, settings=settings)


def loss_of(
    segment: dict[str, Array],
    settings: ActorCriticSettings,
    *,
    proximal: tuple[Tensor, Tensor],
    current: tuple[Tensor, Tensor],
) -> Tensor:
    prepared = prepare(segment, *proximal, settings)
    valid_TN = torch.as_tensor(segment["valid"])
    logits_TNA, values_SN = current
    return actor_critic_loss(
        *ACTIONS.logprobs_and_entropy(logits_TNA[valid_TN], prepared.steps.actions_B, torch),
        values_SN[:-1][valid_TN],
        prepared.steps,
        settings,
    ).total


@given(st.sampled_from(NAMES), st.integers(0, 2**31))
def test_loss_equals_the_slow_one(name: ObjectiveName, seed: int) -> None:
    settings = msgspec.structs.replace(PLAIN, objective=name, clip_rho=1.2, lambda_=0.9)
    segment = random_segment(seed, num_steps=NUM_STEPS, num_envs=NUM_ENVS)
    proximal, current = outputs(seed), outputs(seed, drift=0.3)
    expected = slow.loss(
        name,
        segment,
        proximal=slow.Policy(logits=proximal[0].numpy().tolist(), values=proximal[1].numpy().tolist()),
        current=slow.Policy(logits=current[0].numpy().tolist(), values=current[1].numpy().tolist()),
        discount=settings.discount,
        lambda_=settings.lambda_,
        clip_rho=settings.clip_rho,
        clip_c=settings.clip_c,
        clip=settings.clip,
        entropy_weight=settings.entropy_weight,
        value_weight=settings.value_weight,
        value_scale=settings.value_scale,
    )
    found = loss_of(segment, settings, proximal=proximal, current=current)
    assert float(found) == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_loss_is_what_it_always_was(name: ObjectiveName) -> None:
    golden = json.loads(GOLDEN.read_text())
    settings = recipe(name)
    segment = random_segment(7, num_steps=NUM_STEPS, num_envs=NUM_ENVS)
    found = loss_of(segment, settings, proximal=outputs(7), current=outputs(7, drift=0.2))
    assert float(found) == pytest.approx(golden[name], abs=1e-4)


def gradients(
    name: ObjectiveName, segment: dict[str, Array], logits_TNA: Tensor, values_SN: Tensor
) -> tuple[Tensor, Tensor]:
    logits_TNA, values_SN = logits_TNA.clone().requires_grad_(), values_SN.clone().requires_grad_()
    settings = msgspec.structs.replace(PLAIN, objective=name)
    proximal = (logits_TNA.detach(), values_SN.detach())
    total = loss_of(segment, settings, proximal=proximal, current=(logits_TNA, values_SN))
    of_logits, of_values = torch.autograd.grad(total, (logits_TNA, values_SN))
    return of_logits, of_values


def test_on_fresh_data_all_objectives_have_the_same_gradient() -> None:
    logits_TNA, values_SN = outputs(3)
    segment = on_policy(random_segment(3, num_steps=NUM_STEPS, num_envs=NUM_ENVS), logits_TNA)
    expected = gradients("vtrace", segment, logits_TNA, values_SN)
    assert float(expected[0].abs().max()) > 0.0
    for name in NAMES:
        torch.testing.assert_close(gradients(name, segment, logits_TNA, values_SN), expected)


def test_on_stale_data_the_correction_changes_the_gradient() -> None:
    logits_TNA, values_SN = outputs(3)
    segment = random_segment(3, num_steps=NUM_STEPS, num_envs=NUM_ENVS)
    corrected, _ = gradients("vtrace", segment, logits_TNA, values_SN)
    uncorrected, _ = gradients("none", segment, logits_TNA, values_SN)
    assert float((corrected - uncorrected).abs().max()) > 1e-3


def test_the_first_gradient_step_of_vtrace_is_impalas() -> None:
    logits_TNA, values_SN = outputs(5)
    segment = random_segment(5, num_steps=NUM_STEPS, num_envs=NUM_ENVS)
    steps = prepare(segment, logits_TNA, values_SN, PLAIN).steps
    found, _ = gradients("vtrace", segment, logits_TNA, values_SN)
    logits_TNA = logits_TNA.requires_grad_()
    logprobs_BA = torch.log_softmax(logits_TNA, dim=-1)[torch.as_tensor(segment["valid"])]
    taken_B = logprobs_BA.gather(-1, steps.actions_B[:, None])[:, 0]
    entropy = -(logprobs_BA.exp() * logprobs_BA).sum(dim=-1).mean()
    impala = -(steps.weights_B * steps.advantages_B * taken_B).mean() - PLAIN.entropy_weight * entropy
    (expected,) = torch.autograd.grad(impala, logits_TNA)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_are_no_steps_reach_neither_loss_nor_metrics(name: ObjectiveName) -> None:
    settings = recipe(name)
    segment = random_segment(11, num_steps=NUM_STEPS, num_envs=NUM_ENVS)
    skipped = ~segment["valid"]
    assert skipped.any()
    changed = {key: tensor.copy() for key, tensor in segment.items()}
    changed["actions"][skipped] = 0
    changed["behavior_logprobs"][skipped] = -20.0
    changed["rewards"][skipped] = 1e6
    changed["terminated"][skipped] = True
    proximal = outputs(11)
    before, after = prepare(segment, *proximal, settings), prepare(changed, *proximal, settings)
    assert before.metrics == after.metrics
    torch.testing.assert_close(before.steps.advantages_B, after.steps.advantages_B)
    torch.testing.assert_close(before.steps.value_targets_B, after.steps.value_targets_B)


def one_step(*, terminated: bool, truncated: bool) -> dict[str, Array]:
    """An episode that ends at the first step, and the row after it."""
    return {
        "observations": np.zeros((3, 1, 4), dtype=np.float32),
        "actions": np.zeros((2, 1), dtype=np.int32),
        "behavior_logprobs": np.full((2, 1), -1.0986123, dtype=np.float32),
        "rewards": np.array([[1.0], [0.0]], dtype=np.float32),
        "terminated": np.array([[terminated], [False]]),
        "truncated": np.array([[truncated], [False]]),
        "valid": np.array([[True], [False]]),
    }


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [(True, False, 1.0), (False, True, 1.0 + 0.99 * 50.0), (True, True, 1.0)],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_time_limit_bootstraps_and_an_end_does_not(
    name: ObjectiveName, terminated: bool, truncated: bool, expected: float
) -> None:
    settings = msgspec.structs.replace(PLAIN, objective=name, value_scale=10.0)
    values_SN = torch.tensor([[0.3], [5.0], [900.0]])
    prepared = prepare(
        one_step(terminated=terminated, truncated=truncated), torch.zeros(2, 1, 3), values_SN, settings
    )
    assert prepared.steps.value_targets_B.numpy().tolist() == pytest.approx([expected / 10.0])
    assert prepared.steps.advantages_B.numpy().tolist() == pytest.approx([expected - 3.0])


def test_metrics_measure_how_far_the_data_is_from_the_policy() -> None:
    logits_TNA, values_SN = outputs(3)
    stale = random_segment(3, num_steps=NUM_STEPS, num_envs=NUM_ENVS)
    fresh = on_policy(stale, logits_TNA)
    metrics = prepare(fresh, logits_TNA, values_SN, PLAIN).metrics
    assert metrics["ess"] == pytest.approx(1.0)
    assert metrics["truncated_fraction"] == 0.0
    assert metrics["mismatch_kl"] == pytest.approx(0.0, abs=1e-6)
    metrics = prepare(stale, logits_TNA, values_SN, PLAIN).metrics
    assert metrics["ess"] < 0.9
    assert 0.0 < metrics["truncated_fraction"] < 1.0
    assert metrics["mismatch_kl"] > 0.01


@given(st.integers(1, 100), st.integers(1, 8), st.integers(0, 2**31))
def test_an_epoch_passes_every_step_once(num_steps: int, minibatches: int, seed: int) -> None:
    settings = ActorCriticSettings(minibatches=minibatches)
    generator = torch.Generator().manual_seed(seed)
    parts = list(minibatch_indices(num_steps, settings, generator=generator))
    assert len(parts) == min(minibatches, num_steps)
    assert sorted(torch.cat(parts).numpy().tolist()) == list(range(num_steps))


def test_learning_rate_falls_to_its_final_share() -> None:
    settings = ActorCriticSettings(learning_rate=1.0, anneal_updates=100, learning_rate_final_share=0.05)
    rates = [learning_rate_at(settings, update=update) for update in (1, 50, 100, 5_000)]
    assert rates == pytest.approx([0.9905, 0.525, 0.05, 0.05])


def test_the_weight_of_the_entropy_moves_to_its_final_value() -> None:
    settings = ActorCriticSettings(entropy_weight=0.1, entropy_weight_final=0.02, entropy_anneal_updates=8)
    weights = [entropy_weight_at(settings, update=update) for update in (1, 4, 8, 9)]
    assert weights == pytest.approx([0.09, 0.06, 0.02, 0.02])
    assert entropy_weight_at(ActorCriticSettings(entropy_weight=0.1), update=50) == 0.1


def test_the_divergence_of_a_loss_is_measured_where_it_has_a_target() -> None:
    segment = random_segment(3, num_steps=NUM_STEPS, num_envs=NUM_ENVS)
    batch, (logits_TNA, values_SN), (drifted_TNA, _) = batch_of(segment), outputs(3), outputs(3, drift=0.5)
    prepared = prepare(segment, logits_TNA, values_SN, PLAIN)

    def metrics(logits_TNA: Tensor, **changes: Any) -> dict[str, float]:
        settings = msgspec.structs.replace(PLAIN, **changes)
        found = ACTIONS.logprobs_and_entropy(logits_TNA[batch.valid_TN], prepared.steps.actions_B, torch)
        values_B = values_SN[:-1][batch.valid_TN]
        return actor_critic_loss(*found, values_B, prepared.steps, settings).metrics

    assert "kl" not in metrics(logits_TNA)
    assert metrics(logits_TNA, target_kl=0.1)["kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics(drifted_TNA, target_kl=0.1)["kl"] > 0.01


def test_a2c_has_no_clip_and_ppos_first_gradient() -> None:
    logits_TNA, values_SN = outputs(3)
    segment = on_policy(random_segment(3, num_steps=NUM_STEPS, num_envs=NUM_ENVS), logits_TNA)
    torch.testing.assert_close(
        gradients("a2c", segment, logits_TNA, values_SN), gradients("ppo", segment, logits_TNA, values_SN)
    )
    far = msgspec.structs.replace(PLAIN, objective="a2c")
    drifted = [tensor.requires_grad_() for tensor in outputs(3, drift=2.0)]
    total = loss_of(segment, far, proximal=(logits_TNA, values_SN), current=(drifted[0], drifted[1]))
    (gradient,) = torch.autograd.grad(total, drifted[0])
    assert bool((gradient.abs().sum(dim=-1)[torch.as_tensor(segment["valid"])] > 0).all())


def test_every_named_objective_has_a_row_in_the_table() -> None:
    assert set(OBJECTIVES) == set(NAMES)


@pytest.mark.parametrize(
    "fields",
    [
        {"discount": 1.5},
        {"lambda": -0.1},
        {"clip": 1.0},
        {"clip_c": 2.0},
        {"learning_rate": 0.0},
        {"epochs": 0},
        {"objective": "vtracee"},
        {"objective": "a2c", "epochs": 2, "minibatches": 1},
        {"target_kl": -0.1},
        {"learing_rate": 1e-3},
    ],
)
def test_settings_refuse_a_typo_and_what_is_out_of_range(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, ActorCriticSettings)


def test_settings_name_lambda_without_the_underscore() -> None:
    assert msgspec.convert({"lambda": 0.5}, ActorCriticSettings).lambda_ == 0.5


@pytest.mark.parametrize(
    "broken", ["values of one step less", "logprobs of one step less", "logprobs of one environment"]
)
def test_outputs_that_do_not_fit_the_batch_are_refused(broken: str) -> None:
    batch = batch_of(random_segment(0, num_steps=NUM_STEPS, num_envs=NUM_ENVS))
    logits_TNA, values_SN = outputs(0)
    logprobs_TN = ACTIONS.logprobs(logits_TNA, batch.actions_TN, torch)
    match broken:
        case "values of one step less":
            values_SN = values_SN[:-1]
        case "logprobs of one step less":
            logprobs_TN = logprobs_TN[:-1]
        case _:
            logprobs_TN = logprobs_TN[:, :1]  # would broadcast
    with pytest.raises(ValueError, match="expected"):
        prepare_update(batch, logprobs_TN=logprobs_TN, values_SN=values_SN, settings=PLAIN)
