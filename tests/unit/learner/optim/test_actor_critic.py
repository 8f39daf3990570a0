import numpy as np
import pytest
import torch

from tests.unit.learner.trajectories import segment, segment_tensors, version
from tidegate.algorithms.objectives import ActorCriticSettings
from tidegate.core.errors import RecordError, StaleFolderError
from tidegate.core.records import Array, Trajectory
from tidegate.core.response import Response
from tidegate.learner.optim.actor_critic import ActorCriticTrainer
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.models.registry import describe
from tidegate.runtime.config import PolicyConfig

CPU = torch.device("cpu")
SETTINGS = ActorCriticSettings(epochs=2, minibatches=2)


def network(hidden: tuple[int, ...]) -> SegmentPolicy:
    return build_policy(describe("CartPole-v1"), PolicyConfig(kind="mlp", hidden=hidden))


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
    assert metrics.keys() >= {"loss", "ess", "clipped_fraction", "entropy", "grad_norm", "learning_rate"}
    assert all(np.isfinite(value) for value in metrics.values())
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == before.keys() - {"input_scale"}


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
