from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from tests.support.environments import CARTPOLE
from tests.unit.learner.trajectories import segment, segment_tensors, version
from tidegate.algorithms.objectives import ActorCriticSettings
from tidegate.core.errors import RecordError, StaleFolderError
from tidegate.core.records import Array, Trajectory, VersionSpan
from tidegate.core.response import Response
from tidegate.learner.optim.actor_critic import ActorCriticTrainer
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.runtime.config import PolicyConfig
from tidegate.runtime.environment_settings import RewardConfig
from tidegate.wire.bounds import MAGNITUDE_MAX

CPU = torch.device("cpu")
SETTINGS = ActorCriticSettings(epochs=2, minibatches=2)


def network(hidden: tuple[int, ...]) -> SegmentPolicy:
    return build_policy(CARTPOLE, PolicyConfig(kind="mlp", hidden=hidden))


def trainer(*, seed: int = 0, hidden: tuple[int, ...] = (8, 8)) -> ActorCriticTrainer:
    return ActorCriticTrainer(network(hidden), SETTINGS, seed=seed, device=CPU)


def batch(seed: int) -> list[Trajectory]:
    return [segment(f"t{seed}-{index}", at=version(0), seed=10 * seed + index) for index in range(2)]


def train(made: ActorCriticTrainer, numbers: range) -> list[dict[str, float]]:
    return [made.update(made.prepare(batch(number)), number=number) for number in numbers]


def test_an_update_moves_the_policy_and_measures_it() -> None:
    made = trainer()
    before = made.policy()
    (metrics,) = train(made, range(1, 2))
    after = made.policy()
    assert metrics.keys() >= {
        *("loss", "ess", "ratio_mean", "clipped_fraction", "entropy", "grad_norm", "learning_rate"),
        *("mismatch_kl", "mismatch_kl_lag_0"),
    }
    assert all(np.isfinite(value) for value in metrics.values())
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == before.keys() - {"input_scale"}


def test_rewards_just_below_the_bound_of_the_edge_keep_updates_finite() -> None:
    made = trainer()
    for number in range(1, 4):
        records = batch(number)
        for record in records:
            record.tensors["rewards"] = np.full_like(record.tensors["rewards"], 0.99 * MAGNITUDE_MAX)
        metrics = made.update(made.prepare(records), number=number)
        assert all(np.isfinite(value) for value in metrics.values()), metrics


def test_published_policy_does_not_change_with_the_next_update() -> None:
    made = trainer()
    published = made.policy()
    copies = {name: array.copy() for name, array in published.items()}
    train(made, range(1, 2))
    for name, array in published.items():
        np.testing.assert_array_equal(array, copies[name])


def test_same_seed_and_batches_make_the_same_policy_and_another_seed_does_not() -> None:
    policies: list[dict[str, Array]] = []
    for seed in (0, 0, 1):
        made = trainer(seed=seed)
        train(made, range(1, 4))
        policies.append(made.policy())
    for name, array in policies[0].items():
        np.testing.assert_array_equal(array, policies[1][name])
    assert not np.array_equal(policies[0]["policy.0.weight"], policies[2]["policy.0.weight"])


def test_restored_trainer_goes_on_exactly_as_if_it_had_never_stopped() -> None:
    whole = trainer()
    train(whole, range(1, 4))
    policy, state = whole.policy(), whole.state()
    train(whole, range(4, 7))
    restored = trainer(seed=5)
    restored.restore(policy, state)
    train(restored, range(4, 7))
    for name, array in whole.policy().items():
        np.testing.assert_array_equal(array, restored.policy()[name])


def test_learning_rate_follows_the_number_of_the_update_and_not_of_this_life() -> None:
    late = trainer()
    (metrics,) = train(late, range(98, 99))
    assert metrics["learning_rate"] == pytest.approx(
        SETTINGS.learning_rate * SETTINGS.learning_rate_final_share
    )


def test_checkpoint_of_another_network_is_refused() -> None:
    other = trainer(hidden=(4,))
    with pytest.raises(StaleFolderError, match="another network"):
        trainer().restore(other.policy(), other.state())


@pytest.mark.parametrize("name", ["observations", "actions", "valid"])
def test_segment_without_a_tensor_is_refused(name: str) -> None:
    tensors = segment_tensors(0)
    del tensors[name]
    with pytest.raises(RecordError, match=name):
        trainer().prepare([segment("a", at=version(0), tensors={**tensors})])


def test_segment_with_an_action_the_policy_lacks_is_refused() -> None:
    tensors = segment_tensors(0)
    tensors["actions"] = tensors["actions"] + 5
    with pytest.raises(RecordError, match="actions"):
        trainer().prepare([segment("a", at=version(0), tensors=tensors)])


def test_a_response_narrows_the_update() -> None:
    plain, narrowed = trainer(), trainer()
    start = plain.policy()
    free = plain.update(plain.prepare(batch(1)), number=1)
    held = narrowed.update(
        narrowed.prepare(batch(1)), number=1, response=Response(tier=6, clip=0.01, learning_rate_scale=0.5)
    )
    assert held["learning_rate"] == pytest.approx(free["learning_rate"] / 2)

    def moved(made: ActorCriticTrainer) -> float:
        return sum(float(np.abs(array - start[name]).sum()) for name, array in made.policy().items())

    assert moved(narrowed) < moved(plain)


def test_a_segment_that_does_not_count_steers_the_policy_nowhere() -> None:
    first, second = batch(1)
    other = segment("other", at=version(0), seed=99)
    settings = ActorCriticSettings(epochs=1, minibatches=1, normalise_advantages=False, entropy_weight=0.0)

    def policy_loss(*trajectories: Trajectory, weights: tuple[float, ...]) -> float:
        made = ActorCriticTrainer(network((8, 8)), settings, seed=0, device=CPU)
        response = Response(tier=6, weights=weights)
        return made.update(made.prepare(trajectories), number=1, response=response)["policy_loss"]

    assert policy_loss(first, second, weights=(2.0, 0.0)) == pytest.approx(
        policy_loss(first, other, weights=(2.0, 0.0)), rel=1e-4
    )
    assert policy_loss(first, second, weights=(0.0, 2.0)) != pytest.approx(
        policy_loss(first, other, weights=(0.0, 2.0)), rel=1e-4
    )


def made_with(
    *, policy: PolicyConfig | None = None, reward: RewardConfig | None = None, **changes: Any
) -> ActorCriticTrainer:
    settings = msgspec.structs.replace(SETTINGS, **changes)
    chosen = policy or PolicyConfig(kind="mlp", hidden=(8, 8))
    return ActorCriticTrainer(build_policy(CARTPOLE, chosen), settings, seed=0, device=CPU, reward=reward)


def test_epochs_end_once_the_policy_is_far_enough() -> None:
    (free,) = train(made_with(epochs=6, learning_rate=0.05), range(1, 2))
    (held,) = train(made_with(epochs=6, learning_rate=0.05, target_kl=1e-4), range(1, 2))
    (loose,) = train(made_with(epochs=6, learning_rate=0.05, target_kl=100.0), range(1, 2))
    assert free["gradient_steps"] == loose["gradient_steps"] == 12
    assert held["gradient_steps"] == 2
    assert held["kl"] > 1e-4


def test_the_value_has_a_rate_of_its_own() -> None:
    start = made_with().policy()
    plain, slow = made_with(), made_with(value_learning_rate=SETTINGS.learning_rate / 100)
    # One gradient step: later ones differ in their gradients as well.
    for made in (plain, slow):
        made.update(made.prepare(batch(1)), number=1)

    def moved(made: ActorCriticTrainer, network: str) -> float:
        policy = made.policy()
        return max(
            float(np.abs(policy[name] - start[name]).max()) for name in start if name.startswith(network)
        )

    assert moved(slow, "value.") < 0.05 * moved(plain, "value.")
    assert moved(slow, "policy.") == pytest.approx(moved(plain, "policy."), rel=1e-3)


def test_the_entropys_weight_follows_its_schedule() -> None:
    settings: dict[str, Any] = {
        "entropy_weight": 1.0,
        "entropy_weight_final": 0.0,
        "entropy_anneal_updates": 10,
    }
    late, without = made_with(**settings), made_with(entropy_weight=0.0)
    train(late, range(10, 11))
    train(without, range(10, 11))
    np.testing.assert_array_equal(late.policy()["policy.0.weight"], without.policy()["policy.0.weight"])
    early = made_with(**settings)
    train(early, range(1, 2))
    assert not np.array_equal(early.policy()["policy.0.weight"], without.policy()["policy.0.weight"])


def test_rewards_are_transformed_in_the_update_and_not_in_the_record() -> None:
    records = batch(1)
    kept = [record.tensors["rewards"].copy() for record in records]
    scaled = made_with(reward=RewardConfig(scale=3.0))
    metrics = scaled.update(scaled.prepare(records), number=1)
    assert metrics["reward_mean"] == pytest.approx(3.0)
    for record, rewards in zip(records, kept, strict=True):
        np.testing.assert_array_equal(record.tensors["rewards"], rewards)


NORMALISED = PolicyConfig(kind="mlp", hidden=(8, 8), normalise_observations=True)


def test_statistics_change_only_at_the_end_of_an_update() -> None:
    """At lag 0 the policy that updates start from is the one that acted: mismatch 0."""
    made = made_with(policy=NORMALISED)
    network = build_policy(CARTPOLE, NORMALISED)
    for number in range(1, 4):
        acting = made.policy()
        records: list[Trajectory] = []
        for record in batch(number):
            seen = {"observations": record.tensors["observations"][:-1] * 30.0}
            outputs = network.action_outputs(acting, seen, np)
            logprobs = network.actions.logprobs(outputs, record.tensors["actions"], np)
            tensors = {**record.tensors, "behavior_logprobs": logprobs}
            tensors["observations"] = record.tensors["observations"] * np.float32(30.0)
            records.append(msgspec.structs.replace(record, tensors=tensors))
        metrics = made.update(made.prepare(records), number=number)
        assert metrics["mismatch_kl"] == pytest.approx(0.0, abs=1e-6)
    deviations = np.sqrt(made.policy()["normaliser.variance"])
    np.testing.assert_allclose(deviations, 30.0, rtol=0.2)


def test_a_restored_trainer_continues_its_statistics_exactly() -> None:
    def fresh() -> ActorCriticTrainer:
        return made_with(policy=NORMALISED, reward=RewardConfig(normalise=True))

    whole = fresh()
    train(whole, range(1, 4))
    policy, state = whole.policy(), whole.state()
    expected = train(whole, range(4, 7))
    restored = fresh()
    train(restored, range(1, 2))
    restored.restore(policy, state)
    assert train(restored, range(4, 7)) == expected
    for name, array in whole.policy().items():
        np.testing.assert_array_equal(array, restored.policy()[name])


def test_a_checkpoint_without_statistics_of_returns_begins_them() -> None:
    made = made_with(reward=RewardConfig(normalise=True))
    policy, state = made.policy(), made.state()
    expected = train(made, range(1, 2))
    without = {name: array for name, array in state.tensors.items() if not name.startswith("returns/")}
    made.restore(policy, msgspec.structs.replace(state, tensors=without))
    assert train(made, range(1, 2)) == expected


def test_steps_of_older_versions_are_measured_apart_from_those_of_the_newest() -> None:
    made = trainer()
    (first, second) = batch(1)
    halves = (VersionSpan(version(2), 0, 4), VersionSpan(version(3), 4, 8))
    second = msgspec.structs.replace(second, spans=halves)
    metrics = made.update(made.prepare([first, second]), number=4)
    assert {name for name in metrics if name.startswith("mismatch_kl_lag_")} == {
        "mismatch_kl_lag_0",
        "mismatch_kl_lag_1",
        "mismatch_kl_lag_2-3",
    }
