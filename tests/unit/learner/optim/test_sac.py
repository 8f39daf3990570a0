"""Soft actor-critic on transitions as the store's replay draws them."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from tests.support.replay_units import UnitSource
from tidegate.algorithms.sac_settings import SacSettings
from tidegate.core.errors import RecordError, StaleFolderError
from tidegate.core.records import Array
from tidegate.core.response import Response
from tidegate.core.spaces import BoxSpace, EnvironmentDescription
from tidegate.learner.optim.replay_port import ReplayUnits
from tidegate.learner.optim.sac import SacTrainer
from tidegate.models.gaussian import SquashedGaussian
from tidegate.models.mlp import MlpPolicy
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import FeaturePolicy
from tidegate.runtime.config import PolicyConfig
from tidegate.runtime.environment_settings import RewardConfig

CPU = torch.device("cpu")
NUM_ROWS = 32
DESCRIPTION = EnvironmentDescription(
    env_id="Made-v0",
    observation_space=BoxSpace((3,), "float32", (-np.inf,), (np.inf,)),
    action_space=BoxSpace((2,), "float32", (-2.0, 0.0), (2.0, 10.0)),
)


def network(**changes: Any) -> MlpPolicy:
    config: dict[str, Any] = {"hidden": (8, 8), "activation": "relu", **changes}
    policy = build_policy(DESCRIPTION, PolicyConfig(kind="squashed_mlp", **config))
    assert isinstance(policy, MlpPolicy)
    return policy


def trainer(
    *,
    seed: int = 0,
    policy: FeaturePolicy | None = None,
    hidden: tuple[int, ...] = (8, 8),
    reward: RewardConfig | None = None,
    **settings: Any,
) -> SacTrainer:
    return SacTrainer(
        policy or network(),
        msgspec.convert(settings, SacSettings),
        seed=seed,
        device=CPU,
        hidden=hidden,
        activation="relu",
        reward=reward,
    )


def units(seed: int, *, num_rows: int = NUM_ROWS, num_steps: int = 1, **changes: Array) -> ReplayUnits:
    rng = np.random.default_rng(seed)
    tensors: dict[str, Array] = {
        "observations": rng.normal(size=(num_rows, 3)).astype(np.float32),
        "next.observations": rng.normal(size=(num_rows, 3)).astype(np.float32),
        "actions": rng.uniform(-1.0, 1.0, (num_rows, 2)).astype(np.float32),
        "behavior_logprobs": np.zeros(num_rows, np.float32),
        "rewards": rng.normal(size=(num_rows, num_steps)).astype(np.float32),
        "lengths": np.full(num_rows, num_steps, np.int32),
        "terminated": rng.random(num_rows) < 0.2,
        **changes,
    }
    return ReplayUnits(
        ids_B=np.arange(num_rows, dtype=np.int64),
        probabilities_B=np.full(num_rows, 1.0 / num_rows),
        num_open=num_rows,
        lags_B=np.zeros(num_rows, np.int64),
        tensors=tensors,
    )


class Gated:
    """Layers of a user's own."""

    def shapes(self, num_inputs: int) -> dict[str, tuple[int, ...]]:
        return {"in": (num_inputs, 8), "gate": (num_inputs, 8)}

    def features(self, params: Any, inputs: Any, xp: Any) -> Any:
        return xp.tanh(inputs @ params["in"]) * xp.tanh(inputs @ params["gate"])

    def init_params(self, num_inputs: int, rng: np.random.Generator) -> None:
        return None


def own_network() -> FeaturePolicy:
    config = PolicyConfig(kind="my_policy.py:Gated", squash_actions=True, normalise_observations=True)
    policy = build_policy(DESCRIPTION, config, code=Gated())
    assert isinstance(policy, FeaturePolicy)
    return policy


def train(made: SacTrainer, numbers: range) -> list[dict[str, float]]:
    return [made.update(made.prepare(units(number)), number=number) for number in numbers]


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}


def copied(made: SacTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in made.live().items()}


def test_an_update_moves_policy_critics_targets_and_temperature_and_measures_them() -> None:
    made = trainer()
    before = copied(made)
    (metrics,) = train(made, range(1, 2))
    assert changed(before, copied(made)) == before.keys() - {"input_scale"}
    assert metrics.keys() >= {
        "loss",
        "critic_loss",
        "policy_loss",
        "entropy",
        "temperature",
        "action_value_mean",
        "grad_norm",
        "policy_grad_norm",
        "learning_rate",
    }
    assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize(
    ("rate", "held"), [("policy_learning_rate", "policy."), ("critic_learning_rate", "critics/")]
)
def test_policy_and_critics_have_rates_of_their_own(rate: str, held: str) -> None:
    settings: dict[str, Any] = {rate: 1e-30}
    made = trainer(**settings)
    before = copied(made)
    train(made, range(1, 3))
    after = copied(made)
    for name in ("policy.0.weight", "critics/0.weight"):
        moved = float((after[name] - before[name]).abs().max())
        assert (moved < 1e-12) == name.startswith(held), name


def test_update_whose_critics_are_not_finite_moves_nothing_but_the_random_state() -> None:
    made = trainer(policy=own_network())
    train(made, range(1, 2))
    before = copied(made)
    rewards = np.full((NUM_ROWS, 1), 3e38, np.float32)
    assert np.isinf(made.update(made.prepare(units(2, rewards=rewards)), number=2)["loss"])
    assert changed(before, copied(made)) == {"generator"}


def test_targets_follow_their_critics_by_the_share_of_each_step() -> None:
    made = trainer(target_rate=0.25)
    before = copied(made)
    train(made, range(1, 2))
    after = copied(made)
    for name in before:
        if name.startswith("targets/"):
            critic = after[f"critics/{name.removeprefix('targets/')}"]
            torch.testing.assert_close(after[name], before[name] + 0.25 * (critic - before[name]))


def test_layers_of_ones_own_are_the_policy_and_a_restored_trainer_continues_exactly() -> None:
    made = trainer(policy=own_network())
    before = copied(made)
    train(made, range(1, 4))
    policy, live = own_network(), copied(made)
    # Nothing reads their value, and critics have layers of their own.
    assert changed(before, live) == before.keys() - {"value.weight", "value.bias"}
    assert not any(name.startswith(("critics/own", "optimizer/value")) for name in live)
    seen = {"observations": np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32)}
    tensors = {name: torch.as_tensor(array) for name, array in made.policy().items()}
    features = policy.features(tensors, {"observations": torch.as_tensor(seen["observations"])}, torch)
    np.testing.assert_allclose(
        policy.runner(made.policy())(seen), policy.outputs_of(tensors, features, torch).numpy(), atol=1e-5
    )
    kept, state = made.policy(), made.state()
    expected = train(made, range(4, 6))
    restored = trainer(policy=own_network(), seed=5)
    restored.restore(kept, state)
    assert train(restored, range(4, 6)) == expected
    assert not changed(copied(made), copied(restored))


def test_published_policy_is_the_actors_alone_and_does_not_change_later() -> None:
    made = trainer()
    published = made.policy()
    network().check_params(published)
    copies = {name: array.copy() for name, array in published.items()}
    train(made, range(1, 3))
    for name, array in published.items():
        np.testing.assert_array_equal(array, copies[name])


def test_same_seed_and_batches_make_the_same_state_and_another_seed_does_not() -> None:
    states: list[dict[str, torch.Tensor]] = []
    for seed in (0, 0, 1):
        made = trainer(seed=seed)
        train(made, range(1, 4))
        states.append(copied(made))
    assert not changed(states[0], states[1])
    assert "policy.0.weight" in changed(states[0], states[2])


def test_restored_trainer_continues_exactly() -> None:
    policy = network(normalise_observations=True)
    whole = trainer(policy=policy)
    train(whole, range(1, 4))
    kept, state = whole.policy(), whole.state()
    expected = train(whole, range(4, 7))
    restored = trainer(policy=policy, seed=5)
    train(restored, range(1, 2))
    restored.restore(kept, state)
    assert train(restored, range(4, 7)) == expected
    assert not changed(copied(whole), copied(restored))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"policy": network(hidden=(4,))}, "another network"),
        ({"critic_hidden": (16,)}, "other critics"),
    ],
)
def test_checkpoint_of_other_networks_is_refused(other: dict[str, Any], message: str) -> None:
    made = trainer(**other)
    with pytest.raises(StaleFolderError, match=message):
        trainer().restore(made.policy(), made.state())


def test_checkpoint_of_another_algorithm_is_refused() -> None:
    made = trainer()
    with pytest.raises(StaleFolderError, match="temperature"):
        made.restore(made.policy(), msgspec.structs.replace(made.state(), tensors={}))


def test_temperature_without_a_rate_stays_where_it_is_set() -> None:
    made = trainer(temperature_learning_rate=0.0, initial_temperature=0.05)
    assert [metrics["temperature"] for metrics in train(made, range(1, 4))] == pytest.approx([0.05] * 3)


def test_critics_have_layers_of_their_own_where_they_are_set() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in trainer(critic_hidden=(16,)).live().items()}
    assert shapes["critics/0.weight"] == (2, 5, 16)
    assert shapes["policy.0.weight"] == (3, 8)


def test_priorities_are_the_critics_errors_in_the_order_of_the_units() -> None:
    """Where an episode terminated the target is the reward alone, whatever the networks say."""
    made = trainer()
    assert made.priorities() is None
    batch = units(1, terminated=np.ones(NUM_ROWS, np.bool_))
    tensors = {name: torch.tensor(array) for name, array in batch.tensors.items()}
    rows_BJ = torch.cat([tensors["observations"], tensors["actions"]], dim=1)
    live = copied(made)
    for layer in range(3):
        rows_BJ = rows_BJ.relu() if layer else rows_BJ
        rows_BJ = rows_BJ @ live[f"critics/{layer}.weight"] + live[f"critics/{layer}.bias"]
    made.update(made.prepare(batch), number=1)
    expected = (rows_BJ[..., 0] - tensors["rewards"][:, 0]).abs().mean(dim=0)
    priorities = made.priorities()
    assert priorities is not None
    np.testing.assert_allclose(priorities, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_a_truncated_episode_bootstraps_and_a_terminated_one_does_not() -> None:
    """Truncation is no flag of a drawn transition: it is one that did not terminate."""
    found: list[float] = []
    for terminated in (False, True):
        made = trainer(discount=0.5)
        flags = np.full(NUM_ROWS, terminated)
        made.update(made.prepare(units(1, terminated=flags)), number=1)
        priorities = made.priorities()
        assert priorities is not None
        found.append(float(priorities.mean()))
    assert found[0] != pytest.approx(found[1], rel=1e-3)


def test_rewards_are_scaled_in_the_update_and_not_in_the_units() -> None:
    batch = units(1, rewards=np.ones((NUM_ROWS, 1), np.float32))
    made = trainer(reward=RewardConfig(scale=3.0))
    assert made.update(made.prepare(batch), number=1)["reward_mean"] == pytest.approx(3.0)
    np.testing.assert_array_equal(batch.tensors["rewards"], 1.0)


def test_response_weighs_units_and_scales_the_rates() -> None:
    plain, narrowed = trainer(), trainer()
    free = plain.update(plain.prepare(units(1)), number=1)
    weights = tuple(np.linspace(0.5, 1.5, NUM_ROWS).tolist())
    response = Response(tier=6, learning_rate_scale=0.5, weights=weights)
    held = narrowed.update(narrowed.prepare(units(1)), number=1, response=response)
    assert held["learning_rate"] == pytest.approx(free["learning_rate"] / 2)
    assert held["critic_loss"] != pytest.approx(free["critic_loss"], rel=1e-3)


def test_transitions_that_do_not_fit_the_policy_are_refused() -> None:
    with pytest.raises(RecordError, match="actions of shape"):
        trainer().prepare(units(1, actions=np.zeros((NUM_ROWS, 1), np.float32)))


def test_units_of_the_store_are_trained_as_they_come(tmp_path: Path) -> None:
    """Transitions of two steps from segments with ends, through the store's buffer and frame."""
    source = UnitSource(tmp_path, num_steps=8, num_envs=2, horizon=2, seed=1)
    rng = np.random.default_rng(0)
    for _ in range(4):
        flags = np.zeros((8, 2), np.bool_)
        source.insert(
            {
                "observations": rng.normal(size=(9, 2, 3)).astype(np.float32),
                "actions": rng.uniform(-1.0, 1.0, (8, 2, 2)).astype(np.float32),
                "behavior_logprobs": np.full((8, 2), -0.5, np.float32),
                "rewards": rng.normal(size=(8, 2)).astype(np.float32),
                "terminated": flags,
                "truncated": flags,
                "valid": ~flags,
            }
        )
    made = trainer()
    drawn = source.draw(16)
    metrics = made.update(made.prepare(drawn), number=1)
    priorities = made.priorities()
    assert priorities is not None
    source.set_priorities(drawn, priorities)
    assert np.isfinite(metrics["loss"])
    source.close()


def test_pack_and_unpack_keep_the_batch() -> None:
    alone, shared = trainer(), trainer()
    alone.update(alone.prepare(units(1)), number=1)
    shared.update(shared.unpack(shared.pack(shared.prepare(units(1)))), number=1)
    assert not changed(copied(alone), copied(shared))


@pytest.mark.slow
def test_policy_learns_the_best_action_and_keeps_the_entropy_it_is_asked_for() -> None:
    """Episodes of one step whose reward is best at (0.5, -0.5), from actions drawn at random."""
    policy = network(hidden=(32, 32))
    made = trainer(
        policy=policy,
        hidden=(32, 32),
        policy_learning_rate=0.01,
        critic_learning_rate=0.01,
        temperature_learning_rate=0.02,
        target_entropy=-2.0,
        initial_temperature=0.2,
    )
    best = np.array([0.5, -0.5], np.float32)
    metrics: dict[str, float] = {}
    for number in range(1, 301):
        batch = units(number, num_rows=64, terminated=np.ones(64, np.bool_))
        rewards = -4.0 * np.square(batch.tensors["actions"] - best).sum(axis=1, keepdims=True)
        batch = msgspec.structs.replace(batch, tensors={**batch.tensors, "rewards": rewards})
        metrics = made.update(made.prepare(batch), number=number)
    seen = {"observations": np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)}
    outputs = policy.action_outputs(made.policy(), seen, np)
    assert isinstance(policy.actions, SquashedGaussian)
    np.testing.assert_allclose(policy.actions.mode(outputs).mean(axis=0), best, atol=0.15)
    assert metrics["entropy"] == pytest.approx(-2.0, abs=0.6)
