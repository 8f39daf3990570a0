"""Soft actor-critic on images: critics train the convolutions, and the policy reads them."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.replay_units import UnitSource
from tidegate.algorithms.frame_stacks import with_frames
from tidegate.algorithms.sac_settings import SacSettings
from tidegate.core.records import Array
from tidegate.core.spaces import BoxSpace, DictSpace, EnvironmentDescription
from tidegate.learner.begun_policy import BEGUN_FILE, begin_from_another
from tidegate.learner.checkpoint_tensors import write_tensors
from tidegate.learner.optim.policy_network import Precision
from tidegate.learner.optim.replay_port import ReplayUnits
from tidegate.learner.optim.sac import SacTrainer
from tidegate.models.gaussian import SquashedGaussian
from tidegate.models.policies import build_policy
from tidegate.models.policy_port import FeaturePolicy
from tidegate.runtime.config import PolicyConfig

CPU = torch.device("cpu")
NUM_ROWS = 16
SIDE = 36
DESCRIPTION = EnvironmentDescription(
    env_id="Made-v0",
    observation_space=DictSpace(
        {
            "camera": BoxSpace((1, SIDE, SIDE), "uint8", (0.0,), (255.0,)),
            "speed": BoxSpace((2,), "float32", (-1.0,), (1.0,)),
        }
    ),
    action_space=BoxSpace((1,), "float32", (-2.0,), (2.0,)),
)
CAMERA, SPEED = "observations.camera", "observations.speed"
# Whose names begin so, of the policy's parameters: what critics read.
FEATURES = ("images.", "features.")


def network() -> FeaturePolicy:
    policy = build_policy(DESCRIPTION, PolicyConfig(kind="squashed_cnn", features=32))
    assert isinstance(policy, FeaturePolicy)
    return policy


def trainer(*, seed: int = 0, precision: Precision = "float32", **settings: Any) -> SacTrainer:
    chosen = msgspec.convert(settings, SacSettings)
    return SacTrainer(
        network(), chosen, seed=seed, device=CPU, hidden=(32, 32), activation="relu", precision=precision
    )


def units(seed: int, *, num_rows: int = NUM_ROWS) -> ReplayUnits:
    rng = np.random.default_rng(seed)
    seen: dict[str, Array] = {}
    for before in ("", "next."):
        seen[f"{before}{CAMERA}"] = rng.integers(0, 256, (num_rows, 1, SIDE, SIDE)).astype(np.uint8)
        seen[f"{before}{SPEED}"] = rng.normal(size=(num_rows, 2)).astype(np.float32)
    return ReplayUnits(
        ids_B=np.arange(num_rows, dtype=np.int64),
        probabilities_B=np.full(num_rows, 1.0 / num_rows),
        num_open=num_rows,
        lags_B=np.zeros(num_rows, np.int64),
        tensors={
            **seen,
            "actions": rng.uniform(-1.0, 1.0, (num_rows, 1)).astype(np.float32),
            "rewards": rng.normal(size=(num_rows, 1)).astype(np.float32),
            "lengths": np.ones(num_rows, np.int32),
            "terminated": rng.random(num_rows) < 0.2,
        },
    )


def copied(made: SacTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in made.live().items()}


def trained(made: SacTrainer, *numbers: int) -> list[dict[str, float]]:
    return [made.update(made.prepare(units(number)), number=number) for number in numbers]


@pytest.mark.parametrize(
    ("held", "moves_features"), [("policy_learning_rate", True), ("critic_learning_rate", False)]
)
def test_the_critics_loss_alone_moves_the_convolutions(held: str, *, moves_features: bool) -> None:
    rates: dict[str, Any] = {held: 1e-30}
    made = trainer(**rates)
    before = copied(made)
    trained(made, 1, 2)
    after = copied(made)
    for name in made.policy():
        is_moved = float((after[name] - before[name]).abs().max()) > 1e-12
        assert is_moved == (name.startswith(FEATURES) == moves_features), name


def test_target_critics_read_features_that_follow_by_the_share_of_each_step() -> None:
    made = trainer(target_rate=0.25)
    before = copied(made)
    trained(made, 1)
    after = copied(made)
    targets = [name for name in made.policy() if name.startswith(FEATURES)]
    assert len(targets) == 8
    for name in targets:
        target = f"targets/{name}"
        expected = before[target] + 0.25 * (after[name] - before[target])
        torch.testing.assert_close(after[target], expected)


def test_trainer_that_begins_from_a_policy_has_its_features_in_the_targets_too(tmp_path: Path) -> None:
    policy, made = trainer(seed=1).policy(), trainer(seed=2)
    write_tensors(tmp_path / BEGUN_FILE, policy)
    assert begin_from_another(made, tmp_path)
    live = copied(made)
    for name in (name for name in policy if name.startswith(FEATURES)):
        np.testing.assert_array_equal(live[f"targets/{name}"].numpy(), policy[name], err_msg=name)


def test_restored_trainer_continues_exactly() -> None:
    whole = trainer()
    trained(whole, 1, 2, 3)
    kept, state = whole.policy(), whole.state()
    expected = trained(whole, 4, 5)
    restored = trainer(seed=5)
    trained(restored, 1)
    restored.restore(kept, state)
    assert trained(restored, 4, 5) == expected
    for name, tensor in copied(whole).items():
        assert torch.equal(tensor, copied(restored)[name]), name


def test_lower_precision_of_the_convolutions_gives_nearly_the_same_update() -> None:
    (plain,), (lower,) = trained(trainer(), 1), trained(trainer(precision="bfloat16"), 1)
    assert lower["critic_loss"] == pytest.approx(plain["critic_loss"], rel=0.02)
    assert lower["critic_loss"] != plain["critic_loss"]


@pytest.mark.parametrize(
    "shape", [(SIDE, SIDE), (SIDE, SIDE, 1), (SIDE, SIDE, 3), (1, SIDE, SIDE), (3, SIDE, SIDE)]
)
def test_images_come_through_the_store_in_their_own_shape(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Also those that are no stack of frames: a row of channels, one behind, or none."""
    leaf = BoxSpace(shape, "uint8", (0.0,), (255.0,))
    description = EnvironmentDescription("Made-v0", leaf, DESCRIPTION.action_space)
    policy = build_policy(description, PolicyConfig(kind="squashed_cnn", features=8))
    assert isinstance(policy, FeaturePolicy)
    made = SacTrainer(policy, SacSettings(), seed=0, device=CPU, hidden=(8,))
    source = UnitSource(tmp_path, num_steps=4, num_envs=2)
    rng = np.random.default_rng(0)
    seen = rng.integers(0, 256, (5, 2, *shape)).astype(np.uint8)
    flags = np.zeros((4, 2), np.bool_)
    segment: dict[str, Array] = {
        "observations": seen,
        "actions": rng.uniform(-1.0, 1.0, (4, 2, 1)).astype(np.float32),
        "rewards": np.arange(8, dtype=np.float32).reshape(4, 2),
        "terminated": flags,
        "truncated": flags,
        "valid": ~flags,
    }
    source.insert(with_frames(segment, {"observations": leaf}, name="a segment"))
    units_drawn = source.draw(16)
    steps, envs = np.divmod(units_drawn.tensors["rewards"][:, 0].astype(int), 2)
    np.testing.assert_array_equal(units_drawn.tensors["observations"], seen[steps, envs])
    np.testing.assert_array_equal(units_drawn.tensors["next.observations"], seen[steps + 1, envs])
    assert np.isfinite(made.update(made.prepare(units_drawn), number=1)["loss"])
    source.close()


def shown(rng: np.random.Generator, num_rows: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Noisy images with a bright left or right half, and the best action, which is on that side."""
    sides = rng.integers(0, 2, num_rows)
    images = rng.integers(0, 60, (num_rows, 1, SIDE, SIDE))
    for row, side in enumerate(sides):
        images[row, :, :, side * SIDE // 2 : (side + 1) * SIDE // 2] += 150
    return images.astype(np.uint8), (0.6 * (2.0 * sides - 1.0)).astype(np.float32)[:, None]


@pytest.mark.slow
def test_policy_learns_the_action_that_the_image_shows() -> None:
    """Episodes of one step, from actions drawn at random; the errors of the critics fall."""
    policy = network()
    made = trainer(
        policy_learning_rate=0.003,
        critic_learning_rate=0.003,
        temperature_learning_rate=0.0,
        initial_temperature=0.02,
    )
    errors: list[float] = []
    for number in range(1, 251):
        batch = units(number, num_rows=32)
        images, best = shown(np.random.default_rng(number), 32)
        rewards = -4.0 * np.square(batch.tensors["actions"] - best)
        tensors = {**batch.tensors, CAMERA: images, "rewards": rewards, "terminated": np.ones(32, np.bool_)}
        made.update(made.prepare(msgspec.structs.replace(batch, tensors=tensors)), number=number)
        priorities = made.priorities()
        assert priorities is not None
        errors.append(float(priorities.mean()))
    assert np.mean(errors[-20:]) < 0.4 * np.mean(errors[:20])
    images, best = shown(np.random.default_rng(0), 64)
    outputs = policy.runner(made.policy())({CAMERA: images, SPEED: np.zeros((64, 2), np.float32)})
    assert isinstance(policy.actions, SquashedGaussian)
    assert float(np.abs(policy.actions.mode(outputs) - best).mean()) < 0.3, "0.6 is chance"
