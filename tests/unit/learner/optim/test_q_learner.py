"""The trainer of Q-networks: its targets and priorities beside single transitions, convergence, restore, ranks."""

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference import q_learning as slow
from tests.support.environments import CARTPOLE
from tests.unit.learner.ranks.test_equality import check_equal
from tests.unit.learner.ranks.threads import together
from tidegate.algorithms.q_learning_settings import QLearningSettings
from tidegate.core.errors import RecordError, StaleFolderError
from tidegate.core.records import Array
from tidegate.core.response import Response
from tidegate.core.spaces import BoxSpace, DiscreteSpace, EnvironmentDescription
from tidegate.learner.optim.policy_network import PolicyNetwork
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.optim.q_learner import QLearner
from tidegate.learner.optim.replay_port import ReplayTrainer, ReplayUnits
from tidegate.learner.ranks.port import ALONE, Ranks
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.runtime.config import PolicyConfig
from tidegate.runtime.environment_settings import RewardConfig
from tidegate.runtime.own_code.references import OwnReference
from tidegate.runtime.own_policy import OwnPolicyCode

CPU = torch.device("cpu")
Q_MLP = PolicyConfig(kind="q_mlp", hidden=(8, 8))
SETTINGS = QLearningSettings(discount=0.9, learning_rate=0.01, target_period=3)


class TwoLayers:
    """A network of one's own, whose layers the values and the advantages share."""

    def shapes(self, num_inputs: int) -> dict[str, tuple[int, ...]]:
        return {
            "layer0.weight": (num_inputs, 8),
            "layer0.bias": (8,),
            "layer1.weight": (8, 8),
            "layer1.bias": (8,),
        }

    def features(self, params: Any, inputs: Any, xp: Any) -> Any:
        hidden = xp.tanh(inputs @ params["layer0.weight"] + params["layer0.bias"])
        return xp.tanh(hidden @ params["layer1.weight"] + params["layer1.bias"])


OWN = PolicyConfig(kind="my_policy.py:TwoLayers", action_values=True)


def network(policy: PolicyConfig, description: EnvironmentDescription = CARTPOLE) -> SegmentPolicy:
    code = OwnPolicyCode(TwoLayers(), OwnReference(policy.kind, __file__, "TwoLayers"))
    return build_policy(description, policy, code=code if policy.is_own else None)


def learner(
    chosen: QLearningSettings = SETTINGS,
    *,
    policy: PolicyConfig = Q_MLP,
    description: EnvironmentDescription = CARTPOLE,
    reward: RewardConfig | None = None,
    ranks: Ranks = ALONE,
) -> QLearner:
    return QLearner(
        network(policy, description),
        chosen,
        seed=3,
        device=CPU,
        reward=reward or RewardConfig(),
        ranks=ranks,
    )


def units_of(tensors: dict[str, Array], probabilities: Array | None = None) -> ReplayUnits:
    count = len(tensors["actions"])
    return ReplayUnits(
        ids_B=np.arange(count),
        probabilities_B=np.full(count, 0.01) if probabilities is None else probabilities,
        num_open=100,
        lags_B=np.zeros(count, np.int64),
        tensors=tensors,
    )


def transitions(seed: int, count: int = 12, *, n_steps: int = 3) -> ReplayUnits:
    """Transitions of different lengths and chances; some terminated."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, n_steps + 1, count).astype(np.int32)
    rewards = rng.normal(0, 1, (count, n_steps)).astype(np.float32)
    return units_of(
        {
            "observations": rng.normal(0, 1, (count, 4)).astype(np.float32),
            "next.observations": rng.normal(0, 1, (count, 4)).astype(np.float32),
            "actions": rng.integers(0, 2, count).astype(np.int32),
            "behavior_logprobs": np.zeros(count, np.float32),
            "rewards": np.where(np.arange(n_steps) < lengths[:, None], rewards, 0).astype(np.float32),
            "lengths": lengths,
            "terminated": rng.random(count) < 0.3,
        },
        rng.uniform(0.001, 0.05, count),
    )


def values_of(
    policy: dict[str, Array], observations: Array, *, chosen: PolicyConfig = Q_MLP
) -> list[list[float]]:
    found: Array = network(chosen).action_outputs(policy, {"observations": observations}, np)
    return found.tolist()


def updated(trainer: QLearner, units: ReplayUnits, *, number: int = 1, **more: Any) -> dict[str, float]:
    return trainer.update(trainer.prepare(units), number=number, **more)


@pytest.mark.parametrize("policy_config", [Q_MLP, OWN], ids=lambda config: config.kind)
@pytest.mark.parametrize("rescale", [False, True])
def test_priorities_and_loss_are_those_of_single_transitions(
    *, rescale: bool, policy_config: PolicyConfig
) -> None:
    chosen = msgspec.structs.replace(
        SETTINGS, value_rescaling=rescale, importance_exponent=0.5, target_period=100
    )
    trainer = learner(chosen, reward=RewardConfig(scale=0.5), policy=policy_config)
    target_policy = trainer.policy()
    for number in range(4):
        units, before = transitions(number), trainer.policy()
        tensors = units.tensors
        metrics = updated(trainer, units, number=number + 1)
        online, frozen = (
            values_of(policy, tensors["next.observations"], chosen=policy_config)
            for policy in (before, target_policy)
        )
        values: list[float] = []
        targets: list[float] = []
        for row, q in enumerate(values_of(before, tensors["observations"], chosen=policy_config)):
            length = int(tensors["lengths"][row])
            values.append(q[int(tensors["actions"][row])])
            terminated = [False] * (length - 1) + [bool(tensors["terminated"][row])]
            targets.append(
                slow.target(
                    rewards=(0.5 * tensors["rewards"][row, :length]).tolist(),
                    terminated=terminated,
                    truncated=[False] * length,
                    values_after=[0.0] * (length - 1) + [slow.double_q_value(online[row], frozen[row])],
                    start=0,
                    n_steps=length,
                    discount=0.9,
                    rescale=rescale,
                )
            )
        errors = np.abs(np.subtract(targets, values))
        priorities = trainer.priorities()
        assert priorities is not None
        assert priorities.dtype == np.float32
        np.testing.assert_allclose(priorities, errors, atol=1e-4)
        weights = (units.num_open * units.probabilities_B) ** -0.5
        expected = slow.loss(
            values=values, targets=targets, weights=(weights / weights.max()).tolist(), huber_width=1.0
        )
        assert metrics["loss"] == pytest.approx(expected, abs=1e-4)
        assert metrics["td_error_mean"] == pytest.approx(errors.mean(), abs=1e-4)


def test_target_network_is_copied_every_period_of_gradient_steps() -> None:
    trainer = learner()
    for number in range(1, 8):
        updated(trainer, transitions(number), number=number)
        policy, state = trainer.policy(), trainer.state().tensors
        is_copy = all(np.array_equal(state[f"target/{name}"], array) for name, array in policy.items())
        assert is_copy == (number % SETTINGS.target_period == 0)


def corridor() -> dict[str, Array]:
    """Every step of a corridor of five places: right earns 1 at its end, where it terminates; left stays or goes back.

    A step at its first place to the left is truncated there.
    """
    rows: list[tuple[int, int, float, int, bool]] = []
    for place in range(5):
        rows.append((place, 0, 0.0, max(place - 1, 0), False))
        rows.append((place, 1, float(place == 4), min(place + 1, 4), place == 4))
    places, actions, rewards, following, terminated = zip(*rows, strict=True)
    one_hot = np.eye(5, dtype=np.float32)
    return {
        "observations": one_hot[list(places)],
        "next.observations": one_hot[list(following)],
        "actions": np.array(actions, np.int32),
        "rewards": np.array(rewards, np.float32)[:, None],
        "lengths": np.ones(10, np.int32),
        "terminated": np.array(terminated),
    }


@pytest.mark.slow
@pytest.mark.parametrize("rescale", [False, True])
def test_values_converge_to_the_discounted_returns_of_the_best_policy(*, rescale: bool) -> None:
    description = EnvironmentDescription(
        "Corridor-v0", BoxSpace((5,), "float32", (0.0,), (1.0,)), DiscreteSpace(2)
    )
    chosen = QLearningSettings(
        discount=0.9, learning_rate=0.01, target_period=10, value_rescaling=rescale, max_grad_norm=100.0
    )
    trainer = learner(chosen, description=description, policy=PolicyConfig(kind="q_mlp", hidden=(32,)))
    for number in range(1, 801):
        updated(trainer, units_of(corridor()), number=number)
    policy = build_policy(description, PolicyConfig(kind="q_mlp", hidden=(32,)))
    found = policy.action_outputs(trainer.policy(), {"observations": np.eye(5, dtype=np.float32)}, np)
    best = 0.9 ** (4 - np.arange(5))
    left = 0.9 * best[[0, 0, 1, 2, 3]]
    expected = np.stack([left, best], axis=1)
    if rescale:
        expected = np.vectorize(slow.rescaled)(expected)
    np.testing.assert_allclose(found, expected, atol=0.03)


def test_restored_trainer_continues_exactly() -> None:
    whole = learner()
    for number in range(1, 5):
        updated(whole, transitions(number), number=number)
    policy, state = whole.policy(), whole.state()
    resumed = learner()
    resumed.restore(policy, state)
    for number in range(5, 12):
        expected = updated(whole, transitions(number), number=number)
        assert updated(resumed, transitions(number), number=number) == expected
    for name, array in whole.state().tensors.items():
        np.testing.assert_array_equal(resumed.state().tensors[name], array, err_msg=name)


def test_policy_from_elsewhere_begins_with_itself_as_target_and_another_network_is_refused() -> None:
    trainer, other = learner(), learner(policy=PolicyConfig(kind="q_mlp", hidden=(4,)))
    updated(trainer, transitions(0))
    fresh = learner()
    fresh.restore(trainer.policy(), TrainerState(tensors={}, values={}))
    for name, array in trainer.policy().items():
        np.testing.assert_array_equal(fresh.state().tensors[f"target/{name}"], array)
    with pytest.raises(StaleFolderError, match="another network"):
        other.restore(trainer.policy(), trainer.state())
    with pytest.raises(StaleFolderError, match="target network of another policy"):
        other.restore(other.policy(), TrainerState(tensors={"target/q": np.zeros(3)}, values={}))


def test_response_scales_the_step_and_weights_the_units() -> None:
    plain, halved = learner(), learner()
    units = transitions(0)
    start = plain.policy()["policy.0.bias"]
    updated(plain, units)
    response = Response(tier=1, learning_rate_scale=0.5, weights=(1.0,) * 12)
    metrics = updated(halved, units, response=response)
    moved, moved_less = (np.abs(each.policy()["policy.0.bias"] - start).max() for each in (plain, halved))
    assert moved_less == pytest.approx(0.5 * moved, rel=0.01)
    assert metrics["learning_rate"] == pytest.approx(0.005)
    ignored = learner()
    assert updated(ignored, units, response=Response(tier=1, weights=(0.0,) * 12))["loss"] == 0.0


def test_statistics_of_observations_are_updated_after_the_step() -> None:
    config = PolicyConfig(kind="q_mlp", hidden=(8,), normalise_observations=True)
    trainer = learner(policy=config)
    before = trainer.policy()
    updated(trainer, transitions(0, 64))
    name = "normaliser.mean"
    observations = transitions(0, 64).tensors["observations"]
    assert not np.array_equal(trainer.policy()[name], before[name])
    np.testing.assert_allclose(trainer.policy()[name], observations.mean(axis=0), atol=1e-5)


@pytest.mark.slow
def test_images_are_trained_by_convolutions() -> None:
    description = EnvironmentDescription(
        "Made-v0", BoxSpace((2, 36, 36), "uint8", (0.0,), (255.0,)), DiscreteSpace(2)
    )
    trainer = learner(
        msgspec.structs.replace(SETTINGS, learning_rate=1e-3),
        description=description,
        policy=PolicyConfig(kind="q_cnn", features=16),
    )
    rng = np.random.default_rng(0)
    tensors = {
        **transitions(0).tensors,
        "observations": rng.integers(0, 256, (12, 2, 36, 36), np.uint8),
        "next.observations": rng.integers(0, 256, (12, 2, 36, 36), np.uint8),
    }
    losses = [updated(trainer, units_of(tensors), number=number)["loss"] for number in range(1, 40)]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.slow
@given(count=st.integers(2, 4), num_units=st.integers(3, 9), seed=st.integers(0, 50), weighted=st.booleans())
@settings(max_examples=4)
def test_ranks_update_a_q_network_as_one_does(count: int, num_units: int, seed: int, weighted: bool) -> None:
    response = (
        Response(tier=1, weights=tuple(np.linspace(0.5, 1.0, num_units))) if weighted else Response(tier=0)
    )
    chosen = msgspec.structs.replace(SETTINGS, target_period=2)
    config = PolicyConfig(kind="q_mlp", hidden=(8,), normalise_observations=True)

    def train(ranks: Ranks) -> tuple[QLearner, list[dict[str, float]]]:
        trainer = learner(chosen, policy=config, ranks=ranks)
        made: list[dict[str, float]] = []
        for number in range(1, 4):
            # As ranks get a batch from the first one.
            batch = trainer.unpack(trainer.pack(trainer.prepare(transitions(seed + number, num_units))))
            made.append(trainer.update(batch, number=number, response=response))
        return trainer, made

    alone, measured = train(ALONE)
    ranks = together(count, train)
    check_equal(alone, measured, [trainer for trainer, _ in ranks], ranks[0][1])
    for trainer, _ in ranks:
        found, expected = trainer.priorities(), alone.priorities()
        assert found is not None
        assert expected is not None
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("next.observations", None, "have no next.observations"),
        (
            "observations",
            np.zeros((12, 3), np.float32),
            r"observations of shape \(12, 3\)",
        ),
        ("rewards", np.zeros(12, np.float32), r"rewards of shape \(12,\)"),
        ("actions", np.full(12, 2, np.int32), "actions from 2 to 2"),
    ],
)
def test_units_that_are_no_transitions_of_the_environment_are_refused(
    name: str, tensor: Array | None, message: str
) -> None:
    tensors = dict(transitions(0).tensors)
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    with pytest.raises(RecordError, match=message):
        learner().prepare(units_of(tensors))


def test_trainer_is_one_of_replay() -> None:
    trainer = learner()
    assert isinstance(trainer, ReplayTrainer)
    assert trainer.priorities() is None


def test_lower_precision_of_convolutions_leaves_values_in_float32() -> None:
    description = EnvironmentDescription(
        "Made-v0", BoxSpace((2, 36, 36), "uint8", (0.0,), (255.0,)), DiscreteSpace(3)
    )
    policy = build_policy(description, PolicyConfig(kind="q_cnn", features=16))
    params = {
        name: torch.tensor(array) for name, array in policy.init_params(np.random.default_rng(0)).items()
    }
    # A large value in common, beside which bfloat16 would lose what tells actions apart.
    params["value.bias"] += 300.0
    images = torch.tensor(np.random.default_rng(1).integers(0, 256, (4, 2, 36, 36), np.uint8))
    q_BA, best_B = (
        found.detach()
        for found in PolicyNetwork(policy, params, precision="bfloat16", device=CPU).outputs_and_values(
            {"observations": images}, {}
        )
    )
    assert q_BA.dtype == best_B.dtype == torch.float32
    exact_BA = policy.action_outputs(params, {"observations": images}, torch)
    torch.testing.assert_close(q_BA - q_BA[:, :1], exact_BA - exact_BA[:, :1], rtol=0.05, atol=1e-3)
