"""Answers to several actors by one call of the network."""

import numpy as np
import pytest

from tests.support.environments import CARTPOLE
from tests.unit.actor import toy_pixels
from tests.unit.inference.support import checked, make_policy, random_step, snapshot, version
from tidegate.core.errors import RecordError
from tidegate.core.records import PolicySnapshot
from tidegate.inference.acting import act_together, prepare
from tidegate.models.recurrent import RecurrentPolicy
from tidegate.runtime.config import PolicyConfig

POLICIES = {
    "mlp": (PolicyConfig(kind="mlp", hidden=(8,)), CARTPOLE),
    "normalised": (PolicyConfig(kind="mlp", hidden=(8,), normalise_observations=True), CARTPOLE),
    "recurrent": (PolicyConfig(kind="mlp", hidden=(8,), memory="lstm", memory_units=4), CARTPOLE),
    "images": (PolicyConfig(kind="cnn"), toy_pixels.DESCRIPTION),
    "values": (PolicyConfig(kind="q_mlp", hidden=(8,)), CARTPOLE),
    "values, recurrent": (
        PolicyConfig(kind="q_mlp", hidden=(8,), memory="gru", memory_units=4),
        CARTPOLE,
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_batch_gives_each_actor_what_it_would_get_alone(name: str) -> None:
    config, description = POLICIES[name]
    policy, layout = make_policy(config, description)
    prepared = prepare(policy, snapshot(policy, 5), threads=1)
    rng = np.random.default_rng(1)
    steps = [checked(layout, random_step(layout, rng, number=number)) for number in (1, 7, 3)]
    together = act_together(policy, prepared, steps)
    assert [answer.number for answer in together] == [1, 7, 3]
    for step, answer in zip(steps, together, strict=True):
        [alone] = act_together(policy, prepared, [step])
        assert answer.version == version(5)
        np.testing.assert_array_equal(answer.actions, alone.actions)
        np.testing.assert_allclose(answer.logprobs, alone.logprobs, atol=1e-5)
        np.testing.assert_allclose(answer.memory, alone.memory, atol=1e-5)
        np.testing.assert_allclose(answer.outputs, alone.outputs, atol=1e-5)
        read = layout.acted(
            answer.number,
            answer.version,
            actions=answer.actions.tobytes(),
            logprobs=answer.logprobs.tobytes(),
            memory=answer.memory.tobytes(),
            outputs=answer.outputs.tobytes(),
        )
        np.testing.assert_array_equal(read.actions, answer.actions)
        assert read.outputs.tobytes() == answer.outputs.tobytes()


def test_logprobs_are_those_of_the_policy_and_actions_are_drawn_from_each_seed() -> None:
    policy, layout = make_policy()
    params = snapshot(policy, 0)
    prepared = prepare(policy, params, threads=1)
    step = checked(layout, random_step(layout, np.random.default_rng(2)))
    [answer] = act_together(policy, prepared, [step])
    outputs = policy.action_outputs(params.tensors, step.observations, np)
    actions, logprobs = policy.actions.sample(outputs, np.random.default_rng(step.seed))
    np.testing.assert_array_equal(answer.actions, actions)
    np.testing.assert_allclose(answer.logprobs, logprobs, atol=1e-6)


def test_actor_of_a_q_network_gets_the_values_and_no_actions() -> None:
    config, description = POLICIES["values"]
    policy, layout = make_policy(config, description)
    params = snapshot(policy, 0)
    step = checked(layout, random_step(layout, np.random.default_rng(2)))
    [answer] = act_together(policy, prepare(policy, params, threads=1), [step])
    np.testing.assert_allclose(
        answer.outputs, policy.action_outputs(params.tensors, step.observations, np), atol=1e-5
    )
    assert answer.actions.size == answer.logprobs.size == 0


def test_memory_after_a_step_is_the_policys_own() -> None:
    config, description = POLICIES["recurrent"]
    policy, layout = make_policy(config, description)
    assert isinstance(policy, RecurrentPolicy)
    params = snapshot(policy, 0)
    step = checked(layout, random_step(layout, np.random.default_rng(3)))
    [answer] = act_together(policy, prepare(policy, params, threads=1), [step])
    _, memory = policy.stepper(params.tensors)(step.observations, step.memory)
    np.testing.assert_allclose(answer.memory, memory, atol=1e-6)


@pytest.mark.parametrize("wrong", ["missing", "shape", "nan"])
def test_policy_that_does_not_fit_or_diverged_is_not_prepared(wrong: str) -> None:
    policy, _ = make_policy()
    params = dict(snapshot(policy, 0).tensors)
    name = next(iter(params))
    if wrong == "missing":
        del params[name]
    elif wrong == "shape":
        params[name] = params[name][:-1]
    else:
        params[name] = np.full_like(params[name], np.nan)
    with pytest.raises(RecordError):
        prepare(policy, PolicySnapshot(version(1), params), threads=1)
