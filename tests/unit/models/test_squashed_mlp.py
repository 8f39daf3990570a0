"""The policy of soft actor-critic as the run file asks for it: no value, bounded actions of any Box."""

from typing import Any

import numpy as np
import pytest
import torch

from tidegate.core.errors import ConfigError
from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription, Space
from tidegate.models.policies import build_policy
from tidegate.runtime.config import PolicyConfig

SEEN = BoxSpace((3,), "float32", (-np.inf,), (np.inf,))
MOVES = BoxSpace((2,), "float32", (-2.0, 0.0), (2.0, 10.0))


def described(actions: Space) -> EnvironmentDescription:
    return EnvironmentDescription(env_id="Made-v0", observation_space=SEEN, action_space=actions)


def built(actions: Space = MOVES, **changes: Any) -> Any:
    return build_policy(
        described(actions), PolicyConfig(kind="squashed_mlp", hidden=(8, 8), activation="relu", **changes)
    )


def test_published_parameters_are_those_of_the_policy_alone() -> None:
    params = built().init_params(np.random.default_rng(0))
    assert set(params) == {
        "input_scale",
        *(f"policy.{layer}.{part}" for layer in range(3) for part in ("weight", "bias")),
    }
    built().check_params(params)


def test_actor_and_learner_compute_the_same_outputs() -> None:
    policy = built(normalise_observations=True)
    params = policy.init_params(np.random.default_rng(0))
    seen = {"observations": np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)}
    tensors = {name: torch.tensor(array) for name, array in params.items()}
    expected = policy.action_outputs(tensors, {"observations": torch.tensor(seen["observations"])}, torch)
    np.testing.assert_allclose(policy.runner(params)(seen), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_every_component_reaches_its_own_bounds_and_never_leaves_them() -> None:
    actions = built().actions
    for outputs, bounds in (
        ((50.0, 50.0, -5.0, -5.0), (2.0, 10.0)),
        ((-50.0, -50.0, -5.0, -5.0), (-2.0, 0.0)),
    ):
        sampled, _ = actions.sample(np.array([outputs], np.float32), np.random.default_rng(0))
        given = actions.environment_actions(sampled)
        np.testing.assert_allclose(given[0], bounds, atol=1e-4)
        assert (given[0] >= (-2.0, 0.0)).all()
        assert (given[0] <= (2.0, 10.0)).all()


@pytest.mark.parametrize(
    ("actions", "changes", "message"),
    [
        (DiscreteSpace(3), {}, "continuous actions"),
        (BoxSpace((1,), "float32", (-np.inf,), (np.inf,)), {}, "bounds"),
        (MOVES, {"memory": "gru"}, "memory"),
    ],
)
def test_environment_or_settings_that_do_not_fit_are_refused(
    actions: Space, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        built(actions, **changes)
