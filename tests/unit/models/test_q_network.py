"""Q-networks: numpy beside torch, the dueling head beside loops, exploration by its probabilities, what is refused."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from tests.reference import q_learning as slow
from tests.unit.models.test_mlp import FLAT, PUSH, fresh, seen, tensors
from tests.unit.models.test_onnx_policy import assert_graph_is_the_policy
from tidegate.core.errors import ConfigError
from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription, Space
from tidegate.models.epsilon_greedy import EpsilonGreedy
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.models.q_network import QNetwork, dueling
from tidegate.runtime.config import PolicyConfig

SEEDS = st.integers(0, 2**31)
IMAGES = BoxSpace((4, 40, 40), "uint8", (0.0,), (255.0,))


def network(observations: Space = FLAT, actions: Space | None = None, **settings: Any) -> SegmentPolicy:
    chosen: dict[str, Any] = {"kind": "q_mlp", "hidden": (8, 6), **settings}
    description = EnvironmentDescription("Made-v0", observations, actions or DiscreteSpace(3))
    return build_policy(description, PolicyConfig(**chosen))


@given(seed=SEEDS, shape=st.sampled_from([(), (1,), (16,), (5, 3)]))
def test_numpy_and_torch_agree(seed: int, shape: tuple[int, ...]) -> None:
    policy = network(input_scale=(1.0, 2.0, 5.0, 1.0), activation="relu")
    params, observations = fresh(policy, seed), seen(seed, *shape)
    outputs, values = policy.outputs_and_values(params, observations, np)
    outputs_t, values_t = policy.outputs_and_values(tensors(params), tensors(observations), torch)
    assert (outputs.shape, values.shape) == ((*shape, 3), shape)
    assert outputs.dtype == values.dtype == np.float32
    np.testing.assert_allclose(outputs, outputs_t.numpy(), atol=1e-5)
    np.testing.assert_array_equal(values, outputs.max(-1))
    np.testing.assert_allclose(values_t.numpy(), outputs_t.numpy().max(-1))
    np.testing.assert_array_equal(policy.values(params, observations, np), values)
    if shape == (16,):
        np.testing.assert_array_equal(policy.runner(params)(observations), outputs)


@given(SEEDS, st.integers(1, 18))
def test_dueling_head_equals_the_paper_s_and_does_not_see_what_advantages_share(
    seed: int, num_actions: int
) -> None:
    rng = np.random.default_rng(seed)
    advantages, values = rng.normal(0, 2, (4, num_actions)), rng.normal(0, 5, 4)
    found = dueling(advantages, values, np)
    for row in range(4):
        expected = slow.dueling(advantages[row].tolist(), float(values[row]))
        assert found[row].tolist() == pytest.approx(expected, abs=1e-6)
    np.testing.assert_allclose(found.mean(-1), values, atol=1e-6)
    np.testing.assert_allclose(dueling(advantages + 3.0, values, np), found, atol=1e-6)


def test_images_are_valued_by_convolutions() -> None:
    policy = network(IMAGES, kind="q_cnn", features=16)
    params = fresh(policy)
    observations = {"observations": np.random.default_rng(0).integers(0, 256, (3, 4, 40, 40), np.uint8)}
    found = policy.runner(params)(observations)
    expected = policy.action_outputs(tensors(params), tensors(observations), torch)
    assert found.shape == (3, 3)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("observations", "settings"), [(FLAT, {}), (IMAGES, {"kind": "q_cnn", "features": 8})]
)
def test_exported_graph_gives_the_same_values_and_greedy_actions(
    observations: Space, settings: dict[str, Any]
) -> None:
    policy = network(observations, DiscreteSpace(4, start=2), **settings)
    params = fresh(policy)
    assert isinstance(policy, QNetwork)
    assert_graph_is_the_policy(policy, params)


def test_epsilon_is_the_chance_of_a_random_action_of_each_row() -> None:
    epsilons = np.array([0.0, 0.3, 1.0], np.float32)
    actions = EpsilonGreedy(4).with_epsilons(epsilons)
    outputs = np.tile(np.array([0.0, 2.0, 1.0, -1.0], np.float32), (3, 1))
    rng = np.random.default_rng(0)
    drawn = [actions.sample(outputs, rng) for _ in range(4000)]
    taken, logprobs = np.stack([each[0] for each in drawn]), np.stack([each[1] for each in drawn])
    assert taken.dtype == np.int32
    assert logprobs.dtype == np.float32
    for row, epsilon in enumerate(epsilons.tolist()):
        chances = np.full(4, epsilon / 4) + np.array([0, 1 - epsilon, 0, 0])
        counts = np.bincount(taken[:, row], minlength=4) / len(drawn)
        np.testing.assert_allclose(counts, chances, atol=0.03)
        np.testing.assert_allclose(np.exp(logprobs[:, row]), chances[taken[:, row]], rtol=1e-6)
    assert (taken[:, 0] == 1).all()
    assert (logprobs <= 0.0).all()


def test_logprobs_are_those_of_sampled_actions_and_entropy_is_theirs() -> None:
    outputs = np.random.default_rng(1).normal(0, 1, (6, 3)).astype(np.float32)
    epsilons = np.linspace(0.0, 1.0, 6, dtype=np.float32)
    actions = EpsilonGreedy(3).with_epsilons(epsilons)
    taken, sampled = actions.sample(outputs, np.random.default_rng(2))
    for xp in (np, torch):
        given_outputs, given_actions = (
            (outputs, taken) if xp is np else (torch.tensor(outputs), torch.tensor(taken).long())
        )
        logprobs, entropy = actions.logprobs_and_entropy(given_outputs, given_actions, xp)
        np.testing.assert_allclose(np.asarray(logprobs), sampled, atol=1e-6)
        chances = np.full((6, 3), epsilons[:, None] / 3)
        chances[np.arange(6), outputs.argmax(-1)] += 1 - epsilons
        logs = np.log(np.where(chances > 0, chances, 1.0))
        np.testing.assert_allclose(np.asarray(entropy), -(chances * logs).sum(-1), atol=1e-6)


def test_actions_count_from_the_environments_first() -> None:
    actions = network(actions=DiscreteSpace(3, start=5)).actions
    assert actions.environment_actions(np.array([0, 2], np.int32)).tolist() == [5, 7]
    assert actions.mode(np.array([[0.0, 1.0, 1.0]], np.float32)).tolist() == [1]


@pytest.mark.parametrize(
    ("actions", "settings", "message"),
    [
        (PUSH, {}, "needs Discrete actions"),
        (None, {"squash_actions": True}, r"policy\.squash_actions is set for a Q-network"),
        (PUSH, {"memory": "gru"}, "needs Discrete actions"),
        (None, {"kind": "q_cnn"}, "shows no images"),
    ],
)
def test_what_does_not_fit_is_refused(actions: Space | None, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        network(actions=actions, **settings)
