"""Gradients that actors computed: the same update as the learner's own, and records that are no gradients."""

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from tests.support.segments import DESCRIPTION, random_segment
from tests.unit.learner.trajectories import segment, version
from tidegate.actor.engines.gradient_env import segment_gradient
from tidegate.algorithms.actor_critic_settings import ActorCriticSettings
from tidegate.algorithms.gradient_record import LOSSES
from tidegate.core.errors import RecordError, StaleFolderError
from tidegate.core.records import Array, Trajectory
from tidegate.core.response import Response
from tidegate.learner.optim.actor_critic import ActorCriticTrainer
from tidegate.learner.optim.applied_gradients import AppliedGradientsTrainer
from tidegate.models.policies import build_policy
from tidegate.runtime.config import PolicyConfig

CPU = torch.device("cpu")
POLICY = build_policy(DESCRIPTION, PolicyConfig(kind="mlp", hidden=(8, 8)))
# One gradient step over all steps; advantages as they are, because an actor knows only those of its own segment.
SETTINGS = ActorCriticSettings(epochs=1, minibatches=1, normalise_advantages=False, anneal_updates=0)


def applied(settings: ActorCriticSettings = SETTINGS, *, seed: int = 0) -> AppliedGradientsTrainer:
    return AppliedGradientsTrainer(POLICY, settings, seed=seed, device=CPU)


def gradient_of(segment_tensors: dict[str, Array], params: dict[str, Array]) -> dict[str, Array]:
    return segment_gradient(POLICY, params, segment_tensors, SETTINGS)


def record(index: int, tensors: dict[str, Array]) -> Trajectory:
    return segment(f"t{index}", at=version(0), tensors=tensors)


def gradient_records(trainer: AppliedGradientsTrainer, seeds: range) -> list[Trajectory]:
    params = trainer.policy()
    return [
        record(seed, gradient_of(random_segment(seed, num_steps=9, num_envs=3), params)) for seed in seeds
    ]


def test_applied_gradients_make_the_update_that_the_learner_would_make_of_the_segments() -> None:
    """Segments of different numbers of valid steps weigh by their steps, over several updates with moments."""
    whole, by_actors = ActorCriticTrainer(POLICY, SETTINGS, seed=0, device=CPU), applied()
    for number in range(1, 5):
        seeds = range(10 * number, 10 * number + 3)
        segments = [record(seed, random_segment(seed, num_steps=9, num_envs=3)) for seed in seeds]
        gradients = gradient_records(by_actors, seeds)
        expected = whole.update(whole.prepare(segments), number=number)
        metrics = by_actors.update(by_actors.prepare(gradients), number=number)
        for name in (*LOSSES, "grad_norm", "learning_rate"):
            assert metrics[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
        for name, array in whole.policy().items():
            np.testing.assert_allclose(by_actors.policy()[name], array, atol=1e-6, err_msg=name)


def test_gradient_is_the_derivative_of_the_loss() -> None:
    """By finite differences of the value loss that the record reports: nothing else depends on the value network."""
    params = {name: array.astype(np.float64).astype(np.float32) for name, array in applied().policy().items()}
    # Targets that do not depend on the parameters: no bootstrap, no correction.
    settings = msgspec.structs.replace(
        SETTINGS, objective="none", discount=0.0, lambda_=0.0, entropy_weight=0.1
    )
    played = random_segment(3, num_steps=9, num_envs=3)

    def loss_at(name: str, index: Any, change: float) -> float:
        moved = {**params, name: params[name].copy()}
        moved[name][index] += change
        losses = segment_gradient(POLICY, moved, played, settings)["losses"]
        return settings.value_weight * float(losses[LOSSES.index("value_loss")])

    tensors = segment_gradient(POLICY, params, played, settings)
    for name, index in (("value.2.bias", (0,)), ("value.2.weight", (3, 0)), ("value.0.weight", (1, 2))):
        difference = (loss_at(name, index, 1e-2) - loss_at(name, index, -1e-2)) / 2e-2
        assert tensors[f"gradients.{name}"][index] == pytest.approx(difference, rel=0.02, abs=2e-4), name


def test_response_weights_and_scales_the_step() -> None:
    plain, halved = applied(), applied()
    start = plain.policy()
    records = gradient_records(plain, range(2))
    plain.update(plain.prepare(records), number=1)
    response = Response(tier=1, learning_rate_scale=0.5, weights=(1.0, 0.0))
    halved.update(halved.prepare(records), number=1, response=response)
    moved = np.abs(plain.policy()["policy.0.bias"] - start["policy.0.bias"]).max()
    moved_halved = np.abs(halved.policy()["policy.0.bias"] - start["policy.0.bias"]).max()
    assert 0.0 < moved_halved <= 0.51 * moved


def test_restored_trainer_continues_exactly() -> None:
    whole = applied()
    batches = [gradient_records(whole, range(number, number + 2)) for number in range(6)]
    for number in range(3):
        whole.update(whole.prepare(batches[number]), number=number + 1)
    restored = applied(seed=7)
    restored.restore(whole.policy(), whole.state())
    for made in (whole, restored):
        for number in range(3, 6):
            made.update(made.prepare(batches[number]), number=number + 1)
    for name, array in whole.policy().items():
        np.testing.assert_array_equal(array, restored.policy()[name])


def test_checkpoint_of_another_network_is_refused() -> None:
    other = AppliedGradientsTrainer(
        build_policy(DESCRIPTION, PolicyConfig(kind="mlp", hidden=(4,))), SETTINGS, seed=0, device=CPU
    )
    with pytest.raises(StaleFolderError, match="another network"):
        applied().restore(other.policy(), other.state())


def test_packed_batch_is_the_same_batch() -> None:
    alone, shared = applied(), applied()
    records = gradient_records(alone, range(2))
    alone.update(alone.prepare(records), number=1)
    shared.update(shared.unpack(shared.pack(shared.prepare(records))), number=1)
    for name, array in alone.live().items():
        torch.testing.assert_close(array, shared.live()[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gradients.policy.0.bias", None, "no gradient of this policy"),
        ("gradients.policy.9.bias", np.zeros(3, np.float32), "trains no such parameter"),
        ("gradients.policy.0.bias", np.zeros(9, np.float32), r"of shape \(9,\)"),
        ("gradients.policy.0.bias", np.zeros(8, np.float64), "float64"),
        ("gradients.policy.0.bias", np.full(8, np.nan, np.float32), "not finite"),
        ("losses", None, "no losses"),
        ("losses", np.full(4, np.inf, np.float32), "not finite"),
        ("valid", None, "counts no steps"),
        ("valid", np.zeros((9, 3), np.bool_), "counts no steps"),
    ],
)
def test_record_that_is_no_gradient_is_refused(name: str, value: Array | None, message: str) -> None:
    trainer = applied()
    (good,) = gradient_records(trainer, range(1))
    tensors = {key: tensor for key, tensor in good.tensors.items() if key != name}
    if value is not None:
        tensors[name] = value
    with pytest.raises(RecordError, match=message):
        trainer.prepare([msgspec.structs.replace(good, tensors=tensors)])


def test_segment_sent_by_the_wrong_engine_is_refused_with_the_right_one() -> None:
    with pytest.raises(RecordError, match="gradient_env"):
        applied().prepare([record(0, random_segment(0, num_steps=9, num_envs=3))])
