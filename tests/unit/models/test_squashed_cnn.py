"""The policy of soft actor-critic on images: no value, the same outputs in actors and learner, refusals."""

from typing import Any

import numpy as np
import pytest
import torch

from tidegate.core.errors import ConfigError
from tidegate.core.spaces import BoxSpace, DictSpace, DiscreteSpace, EnvironmentDescription, Space
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import FeaturePolicy
from tidegate.runtime.config import PolicyConfig

IMAGES = BoxSpace((2, 40, 44), "uint8", (0.0,), (255.0,))
MIXED = DictSpace({"camera": IMAGES, "speed": BoxSpace((2,), "float32", (-1.0,), (1.0,))})
MOVES = BoxSpace((2,), "float32", (-2.0, 0.0), (2.0, 10.0))


def built(seen: Space = MIXED, actions: Space = MOVES, **changes: Any) -> FeaturePolicy:
    description = EnvironmentDescription(env_id="Made-v0", observation_space=seen, action_space=actions)
    policy = build_policy(description, PolicyConfig(kind="squashed_cnn", features=12, **changes))
    assert isinstance(policy, FeaturePolicy)
    return policy


def test_published_parameters_are_those_of_the_policy_alone() -> None:
    policy = built()
    params = policy.init_params(np.random.default_rng(0))
    assert not [name for name in params if name.startswith("value")]
    assert params["policy.weight"].shape == (12, 4)
    policy.check_params(params)
    assert params.keys() - policy.feature_parameters(params).keys() == {"policy.weight", "policy.bias"}


@pytest.mark.parametrize("network", ["shallow", "nature", "impala"])
def test_actor_and_learner_compute_the_same_outputs_by_features_or_at_once(network: str) -> None:
    policy = built(network=network, normalise_observations=True)
    rng = np.random.default_rng(0)
    params = policy.init_params(rng)
    params["policy.weight"] = rng.normal(size=(12, 4)).astype(np.float32)
    seen = {
        "observations.camera": rng.integers(0, 256, (5, 2, 40, 44)).astype(np.uint8),
        "observations.speed": rng.normal(size=(5, 2)).astype(np.float32),
    }
    tensors = {name: torch.tensor(array) for name, array in params.items()}
    rows = {name: torch.tensor(array) for name, array in seen.items()}
    expected = policy.action_outputs(tensors, rows, torch).numpy()
    by_features = policy.outputs_of(tensors, policy.features(tensors, rows, torch), torch)
    np.testing.assert_allclose(by_features.numpy(), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(policy.runner(params)(seen), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("seen", "actions", "changes", "message"),
    [
        (IMAGES, DiscreteSpace(3), {}, "set policy.kind to cnn or q_cnn"),
        (IMAGES, BoxSpace((1,), "float32", (-np.inf,), (np.inf,)), {}, "bounds"),
        (IMAGES, MOVES, {"memory": "gru"}, "policy.memory is set"),
        (BoxSpace((3,), "float32", (-1.0,), (1.0,)), MOVES, {}, "shows no images"),
    ],
)
def test_environment_or_settings_that_do_not_fit_are_refused(
    seen: Space, actions: Space, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        built(seen, actions, **changes)
