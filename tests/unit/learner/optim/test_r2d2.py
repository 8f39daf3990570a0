"""The trainer of Q-networks with memory: its targets and priorities beside a walk over every step, burn-in, ends."""

import dataclasses
from typing import Literal

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference import q_learning as slow
from tests.unit.learner.ranks.test_equality import check_equal
from tests.unit.learner.ranks.threads import together
from tidegate.algorithms.q_learning_settings import QLearningSettings, QSequenceSettings
from tidegate.core.errors import RecordError, StaleFolderError
from tidegate.core.records import Array
from tidegate.core.response import Response
from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.optim.r2d2 import R2d2Learner
from tidegate.learner.optim.replay_port import ReplayTrainer, ReplayUnits
from tidegate.learner.optim.sequence_values import SequencePlan, sequence_values
from tidegate.learner.ranks.port import ALONE, Ranks
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import MemoryPolicy
from tidegate.runtime.config import PolicyConfig
from tidegate.runtime.environment_settings import RewardConfig

CPU = torch.device("cpu")
DESCRIPTION = EnvironmentDescription("Made-v0", BoxSpace((3,), "float32", (-1.0,), (1.0,)), DiscreteSpace(2))
BURN_IN, N_STEPS, NUM_STEPS, NUM_UNITS = 2, 3, 7, 12
SETTINGS = QLearningSettings(
    discount=0.9,
    learning_rate=0.01,
    target_period=100,
    importance_exponent=0.5,
    sequences=QSequenceSettings(burn_in=BURN_IN, n_steps=N_STEPS),
)


def network(cell: Literal["gru", "lstm"] = "lstm", *, normalise: bool = False) -> MemoryPolicy:
    config = PolicyConfig(
        kind="q_mlp", hidden=(6,), memory=cell, memory_units=4, normalise_observations=normalise
    )
    policy = build_policy(DESCRIPTION, config)
    assert isinstance(policy, MemoryPolicy)
    return policy


def learner(
    chosen: QLearningSettings = SETTINGS,
    *,
    reward: RewardConfig | None = None,
    ranks: Ranks = ALONE,
    normalise: bool = False,
) -> R2d2Learner:
    return R2d2Learner(
        network(normalise=normalise),
        chosen,
        seed=3,
        device=CPU,
        reward=reward or RewardConfig(),
        ranks=ranks,
    )


def sequences(seed: int, count: int = NUM_UNITS) -> ReplayUnits:
    """Sequences of which some end early, by termination or truncation, and some begin with their episode."""
    rng = np.random.default_rng(seed)
    lengths = np.where(rng.random(count) < 0.5, NUM_STEPS, rng.integers(1, NUM_STEPS + 1, count))
    is_last = np.arange(NUM_STEPS) == lengths[:, None] - 1
    ends = is_last & (lengths < NUM_STEPS)[:, None]
    terminated = ends & (rng.random((count, 1)) < 0.5)
    memory = rng.normal(0.0, 0.5, (count, 8)).astype(np.float32)
    memory[rng.random(count) < 0.3] = 0.0
    return ReplayUnits(
        ids_B=np.arange(count),
        probabilities_B=rng.uniform(0.001, 0.05, count),
        num_open=100,
        lags_B=np.zeros(count, np.int64),
        tensors={
            "observations": rng.normal(0, 1, (count, NUM_STEPS + 1, 3)).astype(np.float32),
            "actions": rng.integers(0, 2, (count, NUM_STEPS)).astype(np.int32),
            "rewards": rng.normal(0, 1, (count, NUM_STEPS)).astype(np.float32),
            "terminated": terminated,
            "truncated": ends & ~terminated,
            "valid": np.arange(NUM_STEPS) < lengths[:, None],
            "lengths": lengths.astype(np.int32),
            "is_initial": np.zeros(count, np.bool_),
            "memory": memory,
        },
    )


def walk(params: dict[str, Array], observations: Array, memory: Array) -> list[list[float]]:
    """The values of all actions at each observation of one sequence."""
    policy, state, found = network(), memory[None], list[list[float]]()
    for seen in observations:
        outputs, state = policy.stepper(params)({"observations": seen[None]}, state)
        found.append(outputs[0].tolist())
    return found


def burn_in_of(units: ReplayUnits, index: int) -> int:
    return BURN_IN if units.tensors["memory"][index].any() else 0


def updated(trainer: R2d2Learner, units: ReplayUnits) -> dict[str, float]:
    return trainer.update(trainer.prepare(units), number=1)


@pytest.mark.parametrize("rescale", [False, True])
def test_priorities_and_loss_are_those_of_a_walk_over_every_step(*, rescale: bool) -> None:
    chosen = msgspec.structs.replace(SETTINGS, value_rescaling=rescale)
    trainer = learner(chosen, reward=RewardConfig(scale=0.5))
    frozen = trainer.policy()
    for number in range(3):
        units, online = sequences(number), trainer.policy()
        metrics = updated(trainer, units)
        all_weights = (units.num_open * units.probabilities_B) ** -0.5
        all_weights /= all_weights.max()
        values, targets, weights, priorities = [list[float]() for _ in range(4)]
        for index in range(len(units)):
            tensors = {name: array[index] for name, array in units.tensors.items()}
            length, burn_in = int(tensors["lengths"]), burn_in_of(units, index)
            online_q, frozen_q = (
                walk(params, tensors["observations"], tensors["memory"]) for params in (online, frozen)
            )
            after = [slow.double_q_value(*pair) for pair in zip(online_q, frozen_q, strict=True)][1:]
            errors = [0.0] * burn_in
            for step in range(burn_in, length):
                values.append(online_q[step][int(tensors["actions"][step])])
                target = slow.target(
                    rewards=(0.5 * tensors["rewards"][:length]).tolist(),
                    terminated=tensors["terminated"].tolist(),
                    truncated=tensors["truncated"].tolist(),
                    values_after=after,
                    start=step,
                    n_steps=N_STEPS,
                    discount=0.9,
                    rescale=rescale,
                )
                targets.append(target)
                weights.append(float(all_weights[index]))
                errors.append(target - values[-1])
            priority = slow.sequence_priority(errors, burn_in=burn_in, length=length, max_share=0.9)
            priorities.append(priority)
        found = trainer.priorities()
        assert found is not None
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, priorities, atol=1e-4)
        expected = slow.loss(values=values, targets=targets, weights=weights, huber_width=1.0)
        assert metrics["loss"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
@given(st.integers(0, 2**31))
@settings(max_examples=20)
def test_values_are_computed_after_the_burn_in_and_up_to_the_row_after_the_end(seed: int) -> None:
    units = sequences(seed)
    trainer = learner()
    batch = trainer.prepare(units)
    params = trainer.policy()
    plan = SequencePlan(batch.lengths_B.numpy(), batch.burn_ins_B.numpy(), num_steps=NUM_STEPS, device=CPU)
    tensors = {name: torch.tensor(array) for name, array in params.items()}
    found_BSA = sequence_values(network(), tensors, plan, batch.observations, batch.memory_BM)
    for index in range(len(units)):
        length, burn_in = int(units.tensors["lengths"][index]), burn_in_of(units, index)
        walked = np.array(walk(params, units.tensors["observations"][index], units.tensors["memory"][index]))
        if length > burn_in:
            inside = slice(burn_in, length + 1)
            np.testing.assert_allclose(found_BSA[index, inside], walked[inside], atol=1e-5)
            assert not found_BSA[index, :burn_in].any()
            assert not found_BSA[index, length + 1 :].any()
        else:
            assert not found_BSA[index].any()


def test_no_gradient_goes_through_the_burn_in() -> None:
    trainer = learner()
    batch = trainer.prepare(sequences(0))
    seen = {name: rows.clone().requires_grad_() for name, rows in batch.observations.items()}
    plan = SequencePlan(batch.lengths_B.numpy(), batch.burn_ins_B.numpy(), num_steps=NUM_STEPS, device=CPU)
    params = {name: torch.tensor(array) for name, array in trainer.policy().items()}
    q_BSA = sequence_values(network(), params, plan, seen, batch.memory_BM)
    (of_seen,) = torch.autograd.grad(q_BSA.square().sum(), [seen["observations"]])
    has_burn_in = batch.burn_ins_B > 0
    assert of_seen[~has_burn_in, :BURN_IN].any()
    assert not of_seen[has_burn_in, :BURN_IN].any()
    assert of_seen[has_burn_in, BURN_IN:].any()


def test_burn_in_brings_a_stale_state_up_to_date() -> None:
    """A state of old parameters is forgotten step by step: with a burn-in the values are nearer to those of the new."""
    policy, rng = network("gru"), np.random.default_rng(0)
    params = policy.init_params(rng)
    old = {name: array + rng.normal(0, 0.3, array.shape).astype(np.float32) for name, array in params.items()}
    num_before, count = 6, 20
    seen = rng.normal(0, 1, (count, num_before + NUM_STEPS + 1, 3)).astype(np.float32)
    true = stale = np.zeros((count, policy.memory_size), np.float32)
    for step in range(num_before):
        _, true = policy.stepper(params)({"observations": seen[:, step]}, true)
        _, stale = policy.stepper(old)({"observations": seen[:, step]}, stale)
    tensors = {name: torch.tensor(array) for name, array in params.items()}
    lengths_B = np.full(count, NUM_STEPS)

    def values(memory: Array, burn_in: int) -> torch.Tensor:
        plan = SequencePlan(lengths_B, np.full(count, burn_in), num_steps=NUM_STEPS, device=CPU)
        rows = {"observations": torch.tensor(seen[:, num_before:])}
        return sequence_values(policy, tensors, plan, rows, torch.tensor(memory))

    exact = values(true, 0)
    first_errors = [
        float((values(stale, burn_in)[:, burn_in] - exact[:, burn_in]).abs().mean()) for burn_in in (0, 3, 6)
    ]
    assert first_errors[0] > 1e-2
    assert first_errors[1] < 0.5 * first_errors[0]
    assert first_errors[2] < 0.5 * first_errors[1]


@pytest.mark.slow
@given(st.integers(0, 2**31))
@settings(max_examples=20)
def test_nothing_past_an_end_and_no_reward_of_the_burn_in_changes_an_update(seed: int) -> None:
    units = sequences(seed)
    inside = np.arange(NUM_STEPS) < units.tensors["lengths"][:, None]
    observed = np.arange(NUM_STEPS + 1) <= units.tensors["lengths"][:, None]
    burns = np.arange(NUM_STEPS) < np.array([[burn_in_of(units, index)] for index in range(len(units))])
    other = sequences(seed + 1).tensors
    changed = {
        **units.tensors,
        "observations": np.where(observed[..., None], units.tensors["observations"], other["observations"]),
        "actions": np.where(inside & ~burns, units.tensors["actions"], other["actions"]),
        "rewards": np.where(inside & ~burns, units.tensors["rewards"], other["rewards"]),
    }
    one, two = learner(), learner()
    first = updated(one, units)
    second = updated(two, msgspec.structs.replace(units, tensors=changed))
    assert first["loss"] == second["loss"]
    for name, array in one.policy().items():
        np.testing.assert_array_equal(array, two.policy()[name])


def test_sequences_inside_their_burn_in_alone_change_nothing_and_get_no_priority() -> None:
    units = sequences(0)
    lengths = np.full(NUM_UNITS, BURN_IN, np.int32)
    memory = np.ones((NUM_UNITS, 8), np.float32)
    units = msgspec.structs.replace(units, tensors={**units.tensors, "lengths": lengths, "memory": memory})
    trainer = learner()
    before = trainer.policy()
    metrics = updated(trainer, units)
    assert "loss" not in metrics
    priorities = trainer.priorities()
    assert priorities is not None
    assert not priorities.any()
    for name, array in trainer.policy().items():
        np.testing.assert_array_equal(array, before[name])


def test_a_restored_trainer_makes_the_same_updates() -> None:
    chosen = msgspec.structs.replace(SETTINGS, target_period=2)
    trainer = learner(chosen, normalise=True)
    updated(trainer, sequences(0))
    other = learner(chosen, normalise=True)
    other.restore(trainer.policy(), trainer.state())
    for seed in (1, 2):
        assert updated(trainer, sequences(seed)) == updated(other, sequences(seed))
    for name, array in trainer.policy().items():
        np.testing.assert_array_equal(array, other.policy()[name])
    with pytest.raises(StaleFolderError):
        other.restore({"unknown": np.zeros(1, np.float32)}, TrainerState(tensors={}, values={}))


@pytest.mark.slow
@settings(max_examples=5)
@given(count=st.integers(2, 4), num_units=st.integers(1, 9), weighted=st.booleans())
def test_ranks_make_the_updates_of_one(count: int, num_units: int, weighted: bool) -> None:
    chosen = msgspec.structs.replace(SETTINGS, target_period=2)
    weights = tuple(np.linspace(0.5, 1.0, num_units).tolist()) if weighted else ()

    def train(ranks: Ranks) -> tuple[R2d2Learner, list[dict[str, float]]]:
        made = learner(chosen, ranks=ranks, normalise=True)
        return made, [
            made.update(
                made.unpack(made.pack(made.prepare(sequences(seed, num_units)))),
                number=seed,
                response=Response(weights=weights),
            )
            for seed in (1, 2)
        ]

    alone, measured = train(ALONE)
    ranks = together(count, train)
    check_equal(alone, measured, [made for made, _ in ranks], ranks[0][1])
    found, expected = ranks[0][0].priorities(), alone.priorities()
    assert found is not None
    assert expected is not None
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["memory", "observations", "actions"])
def test_units_that_are_no_sequences_are_refused(name: str) -> None:
    units = sequences(0)
    tensors = {other: array for other, array in units.tensors.items() if other != name}
    with pytest.raises(RecordError, match=f"have no {name}"):
        learner().prepare(msgspec.structs.replace(units, tensors=tensors))


@pytest.mark.parametrize("name", ["memory", "observations", "actions", "terminated", "lengths"])
def test_sequences_of_another_type_or_length_are_refused(name: str) -> None:
    units = sequences(0)
    for wrong in (units.tensors[name].astype(np.float16), units.tensors[name][:-1]):
        with pytest.raises(RecordError, match=f"Drawn sequences have {name} of shape"):
            learner().prepare(msgspec.structs.replace(units, tensors={**units.tensors, name: wrong}))


def test_unknown_actions_are_refused() -> None:
    units = sequences(0)
    tensors = {**units.tensors, "actions": units.tensors["actions"] + 1}
    with pytest.raises(RecordError, match="actions from"):
        learner().prepare(msgspec.structs.replace(units, tensors=tensors))


def test_it_is_a_trainer_of_units() -> None:
    assert isinstance(learner(), ReplayTrainer)
    batch = learner().prepare(sequences(0))
    assert len(dataclasses.replace(batch)) == NUM_UNITS
