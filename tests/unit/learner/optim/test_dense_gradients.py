"""Updates by written-out gradients beside those by torch's graph, of the same policy and batches."""

import msgspec
import numpy as np
import pytest
import torch

from tests.support.environments import CARTPOLE
from tests.unit.learner.ranks.threads import together
from tests.unit.learner.trajectories import segment, version
from tidegate.algorithms.actor_critic_settings import ActorCriticSettings
from tidegate.core.records import Array, Trajectory
from tidegate.core.spaces import BoxSpace, MultiDiscreteSpace
from tidegate.learner.optim import actor_critic
from tidegate.learner.optim.actor_critic import ActorCriticTrainer
from tidegate.learner.optim.dense_gradients import dense_gradients
from tidegate.learner.ranks.port import ALONE, Ranks
from tidegate.models.mlp import MlpPolicy
from tidegate.models.policies import build_policy
from tidegate.runtime.config import PolicyConfig

CPU = torch.device("cpu")
BOX = BoxSpace(shape=(2,), dtype="float32", low=(-1.0,), high=(1.0,))
CONTINUOUS = msgspec.structs.replace(CARTPOLE, action_space=BOX)
POLICIES = {
    "cartpole": (CARTPOLE, PolicyConfig(kind="mlp", hidden=(8, 8))),
    "relu": (CARTPOLE, PolicyConfig(kind="mlp", hidden=(8,), activation="relu")),
    "no hidden layer": (CARTPOLE, PolicyConfig(kind="mlp", hidden=())),
    "statistics": (CARTPOLE, PolicyConfig(kind="mlp", hidden=(8, 8), normalise_observations=True)),
    "continuous": (CONTINUOUS, PolicyConfig(kind="mlp", hidden=(8, 8))),
}


def trainer(name: str, ranks: Ranks = ALONE) -> ActorCriticTrainer:
    description, chosen = POLICIES[name]
    settings = ActorCriticSettings(epochs=2, minibatches=2, max_grad_norm=0.1)
    return ActorCriticTrainer(build_policy(description, chosen), settings, seed=3, device=CPU, ranks=ranks)


def batch(name: str, seed: int) -> list[Trajectory]:
    records = [segment(f"t{seed}-{index}", at=version(0), seed=10 * seed + index) for index in range(2)]
    if name == "continuous":
        for record in records:
            rng = np.random.default_rng(seed)
            shape = record.tensors["actions"].shape
            record.tensors["actions"] = rng.standard_normal((*shape, 2)).astype(np.float32)
    return records


def trained(made: ActorCriticTrainer, name: str) -> tuple[list[dict[str, float]], dict[str, Array]]:
    metrics = [made.update(made.prepare(batch(name, number)), number=number) for number in range(1, 4)]
    return metrics, made.policy()


def never(*_: object, **_named: object) -> None:
    """Leaves every policy to torch's graph."""


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("name", POLICIES)
def test_three_updates_equal_those_by_the_graph(
    name: str, num_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written_out, policy = together(
        num_ranks, lambda ranks: trained(trainer(name, ranks if num_ranks > 1 else ALONE), name)
    )[0]
    monkeypatch.setattr(actor_critic, "dense_gradients", never)
    by_graph, expected = trained(trainer(name), name)
    assert policy.keys() == expected.keys()
    for tensor, array in expected.items():
        np.testing.assert_allclose(policy[tensor], array, rtol=1e-3, atol=1e-5, err_msg=tensor)
    for found, same in zip(written_out, by_graph, strict=True):
        assert found == pytest.approx(same, rel=1e-3, abs=1e-5)


def test_an_update_that_is_not_finite_says_so_and_changes_nothing() -> None:
    made = trainer("cartpole")
    before = made.policy()
    records = batch("cartpole", 1)
    for record in records:
        record.tensors["rewards"] = np.full_like(record.tensors["rewards"], np.float32(3e38))
    metrics = made.update(made.prepare(records), number=1)
    assert not np.isfinite(metrics["loss"])
    for name, array in made.policy().items():
        np.testing.assert_array_equal(array, before[name])


class Doubled(MlpPolicy):
    """Computes something else than its layers."""


def test_only_dense_layers_on_the_cpu_are_written_out() -> None:
    chosen = PolicyConfig(kind="mlp", hidden=(8, 8))
    policy = build_policy(CARTPOLE, chosen)
    params = {
        name: torch.tensor(array) for name, array in policy.init_params(np.random.default_rng(0)).items()
    }
    assert dense_gradients(policy, params, device=CPU) is not None
    assert dense_gradients(policy, params, device=torch.device("meta")) is None
    assert isinstance(policy, MlpPolicy)
    inherited = Doubled(CARTPOLE, policy.actions, hidden=(8, 8))
    assert dense_gradients(inherited, params, device=CPU) is None
    choices = msgspec.structs.replace(
        CARTPOLE, action_space=MultiDiscreteSpace(shape=(2,), nums_values=(2, 3), starts=(0, 0))
    )
    assert dense_gradients(build_policy(choices, chosen), params, device=CPU) is None
