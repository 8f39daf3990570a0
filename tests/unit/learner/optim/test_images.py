"""Policies with images in the learner, on segments whose actions the actors' form of the network chose."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.learner.ranks.threads import together
from tests.unit.learner.trajectories import segment, version
from tidegate.algorithms.actor_critic_settings import ActorCriticSettings
from tidegate.algorithms.frame_stacks import FrameRecorder
from tidegate.core.errors import RecordError
from tidegate.core.records import Array, Trajectory
from tidegate.core.spaces import BoxSpace, DictSpace, DiscreteSpace, EnvironmentDescription, Space
from tidegate.learner.optim import policy_network, sequence_network
from tidegate.learner.optim.actor_critic import ActorCriticTrainer
from tidegate.learner.optim.policy_network import Precision
from tidegate.learner.ranks.port import ALONE, Ranks
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.models.recurrent import RecurrentPolicy
from tidegate.models.version_runner import version_runner
from tidegate.runtime.config import PolicyConfig

CPU = torch.device("cpu")
SIDE = 36
STACK = BoxSpace((4, SIDE, SIDE), "uint8", (0.0,), (255.0,))
SPEED = BoxSpace((2,), "float32", (-1.0,), (1.0,))
CAMERA, SPEEDS = "observations.camera", "observations.speed"
MIXED = DictSpace({"camera": STACK, "speed": SPEED})


def network(space: Space = STACK, *, kind: str = "cnn", **settings: Any) -> SegmentPolicy:
    description = EnvironmentDescription("Made-v0", space, DiscreteSpace(4))
    chosen: dict[str, Any] = {"features": 32, "hidden": (16,), **settings}
    return build_policy(description, PolicyConfig(kind=kind, **chosen))


def trainer(
    policy: SegmentPolicy, *, precision: Precision = "float32", ranks: Ranks = ALONE
) -> ActorCriticTrainer:
    settings = ActorCriticSettings(epochs=2, minibatches=2)
    return ActorCriticTrainer(policy, settings, seed=3, device=CPU, precision=precision, ranks=ranks)


def play(
    policy: SegmentPolicy, params: dict[str, Array], seed: int, *, num_steps: int = 8, num_envs: int = 3
) -> dict[str, Array]:
    """A segment as an actor makes it: dots on stacked frames, images in full, and behaviour logprobs of ``params``."""
    rng = np.random.default_rng(seed)
    run = version_runner(policy, params, threads=1)
    first = memory = rng.normal(0.0, 0.5, (num_envs, policy.memory_size)).astype(np.float32)
    shown = np.zeros((num_steps + 1, num_envs, 4, SIDE, SIDE), np.uint8)
    speeds = rng.standard_normal((num_steps + 1, num_envs, 2)).astype(np.float32)
    actions = np.empty((num_steps, num_envs), np.int32)
    logprobs = np.empty((num_steps, num_envs), np.float32)
    is_mixed = CAMERA in policy.observations
    for step in range(num_steps + 1):
        shown[step, :, :-1] = shown[step - 1, :, 1:]
        shown[step, :, -1] = 255 * (rng.random((num_envs, SIDE, SIDE)) < 0.1)
        if step < num_steps:
            seen: dict[str, Array] = (
                {CAMERA: shown[step], SPEEDS: speeds[step]} if is_mixed else {"observations": shown[step]}
            )
            outputs, memory = run(seen, memory)
            actions[step], logprobs[step] = policy.actions.sample(outputs, rng)
    flags = np.zeros((num_steps, num_envs), np.uint8)
    return {
        **({CAMERA: shown, SPEEDS: speeds} if is_mixed else {"observations": shown}),
        "actions": actions,
        "behavior_logprobs": logprobs,
        "rewards": rng.standard_normal((num_steps, num_envs)).astype(np.float32),
        "terminated": flags,
        "truncated": flags,
        "valid": np.ones_like(flags),
        **({"memory": first} if policy.memory_size else {}),
    }


def frames_once(tensors: dict[str, Array], image: str = "observations") -> dict[str, Array]:
    shown = tensors[image]
    recorder = FrameRecorder(STACK, num_steps=len(shown) - 1, num_envs=shown.shape[1])
    for observations in shown:
        recorder.append(observations)
    rest = {name: tensor for name, tensor in tensors.items() if name != image}
    return rest | recorder.tensors(image)


def batch(*tensors: dict[str, Array]) -> list[Trajectory]:
    return [segment(f"t{index}", at=version(0), tensors=each) for index, each in enumerate(tensors)]


def decisive(params: dict[str, Array], factor: float) -> dict[str, Array]:
    """Parameters of a policy that prefers some actions clearly, as a trained one does."""
    return params | {"policy.weight": factor * params["policy.weight"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "memory", "factor"),
    [("nature", "none", 1000.0), ("impala", "none", 60.0), ("nature", "lstm", 400.0)],
)
@pytest.mark.parametrize(("precision", "limit"), [("float32", 1e-8), ("bfloat16", 1e-3)])
def test_learner_agrees_with_actors_on_fresh_data(
    name: str, memory: str, factor: float, precision: Precision, limit: float
) -> None:
    policy = network(network=name, memory=memory, memory_units=16)
    made = trainer(policy, precision=precision)
    params = decisive(made.policy(), factor)
    made.restore(params, made.state())
    played = [play(policy, params, seed, num_steps=32, num_envs=8) for seed in range(2)]
    metrics = made.update(made.prepare(batch(*played)), number=1)
    # Of 1.386 nats: a uniform policy would agree whatever was computed, and so would one that never varies.
    assert 0.2 < metrics["entropy"] < 1.3
    assert 0.0 <= metrics["mismatch_kl"] < limit
    assert metrics["ess"] > 1.0 - 100.0 * limit


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_update_changes_every_parameter_and_keeps_them_float32(precision: Precision, memory: str) -> None:
    policy = network(network="impala", memory=memory)
    made = trainer(policy, precision=precision)
    before = made.policy()
    played = play(policy, before, 0)
    for number in (1, 2):
        metrics = made.update(made.prepare(batch(played)), number=number)
        assert all(np.isfinite(value) for value in metrics.values())
    after = made.policy()
    assert [name for name in before if np.array_equal(before[name], after[name])] == []
    assert {array.dtype for array in after.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("kind", ["cnn", "mlp"])
def test_frames_once_and_images_in_full_make_the_same_update(kind: str, memory: str) -> None:
    policy = network(MIXED, kind=kind, memory=memory, normalise_observations=True)
    played = [play(policy, trainer(policy).policy(), seed) for seed in range(2)]
    policies: list[dict[str, Array]] = []
    for tensors in (played, [frames_once(each, CAMERA) for each in played]):
        made = trainer(policy)
        made.update(made.prepare(batch(*tensors)), number=1)
        policies.append(made.policy())
    for name, array in policies[0].items():
        np.testing.assert_array_equal(array, policies[1][name])
    assert not np.array_equal(policies[0]["normaliser.mean"], trainer(policy).policy()["normaliser.mean"])


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_ranks_update_a_policy_with_images_as_one_does(memory: str) -> None:
    policy = network(MIXED, memory=memory)
    played = [frames_once(play(policy, trainer(policy).policy(), seed), CAMERA) for seed in range(2)]

    def train(ranks: Ranks) -> dict[str, Array]:
        made = trainer(policy, ranks=ranks)
        # Ranks but the first get the batch from it.
        received = made.unpack(made.pack(made.prepare(batch(*played))))
        made.update(received, number=1)
        return made.policy()

    alone, shared = train(ALONE), together(3, train)
    for name, array in alone.items():
        np.testing.assert_allclose(shared[0][name], array, rtol=0.0, atol=1e-5)


def test_number_of_images_computed_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = network()
    made = trainer(policy)
    played = made.prepare(batch(frames_once(play(policy, made.policy(), 0))))
    rows = {name: tensor.flatten(0, 1) for name, tensor in played.observations.items()}
    whole = policy_network.PolicyNetwork(policy, made.live(), device=CPU).measured(rows, played.frames)
    monkeypatch.setattr(policy_network, "IMAGES_AT_ONCE", 4)
    parts = policy_network.PolicyNetwork(policy, made.live(), device=CPU).measured(rows, played.frames)
    assert whole.shape == (9 * 3, 5)
    np.testing.assert_allclose(parts.numpy(), whole.numpy(), rtol=0.0, atol=1e-6)


def test_number_of_images_unrolled_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = network(memory="gru")
    assert isinstance(policy, RecurrentPolicy)
    made = trainer(policy)
    played = made.prepare(batch(frames_once(play(policy, made.policy(), 0))))
    unrolled = sequence_network.SequenceNetwork(
        policy, made.live(), policy_network.PolicyNetwork(policy, made.live(), device=CPU)
    )
    columns_C = torch.tensor([2, 0, 1])
    whole = unrolled.outputs(played, columns_C).detach()
    monkeypatch.setattr(sequence_network, "IMAGES_AT_ONCE", 18)  # two environments of nine rows
    np.testing.assert_allclose(
        unrolled.measured(played, columns_C).numpy(), whole.numpy(), rtol=0.0, atol=1e-6
    )


def test_segment_with_images_of_another_environment_is_refused() -> None:
    policy = network()
    made = trainer(policy)
    played = play(policy, made.policy(), 0)
    for wrong in (
        {**played, "observations": played["observations"][..., 1:]},
        {**frames_once(played), "starts.observations": np.zeros((9, 2), np.int32)},
        {name: tensor for name, tensor in frames_once(played).items() if name != "frames.observations"},
    ):
        with pytest.raises(RecordError, match=r"Trajectory t0\.0 has .*observations"):
            made.prepare(batch(wrong))
