"""Updates that are not finite: undone bit for bit, with the trajectory named; for segments, completions and replay."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from tests.support.environments import CARTPOLE
from tests.unit.learner.optim import test_actor_critic as segments
from tests.unit.learner.optim import test_language_model as completions
from tests.unit.learner.optim import test_q_learner as replay
from tests.unit.learner.trajectories import group, segment, segment_tensors, version
from tidegate.algorithms.grpo_settings import GrpoSettings
from tidegate.algorithms.objectives import ActorCriticSettings
from tidegate.core.errors import TidegateError
from tidegate.core.ids import TrajectoryId
from tidegate.core.records import Trajectory
from tidegate.core.response import FRESH
from tidegate.learner import guarded_update
from tidegate.learner.guarded_update import GuardedTrainer, PoisonedBatch
from tidegate.learner.optim.actor_critic import ActorCriticTrainer
from tidegate.learner.optim.port import Trainer, TrainerState
from tidegate.learner.optim.replay_port import ReplayUnits
from tidegate.models.policies import build_policy
from tidegate.runtime.config import PolicyConfig


def parts_of(trajectories: Sequence[Trajectory]) -> list[tuple[TrajectoryId, Any]]:
    return [(item.trajectory_id, [item]) for item in trajectories]


def updated(trainer: Trainer, work: Any, parts: Sequence[tuple[TrajectoryId, Any]]) -> Any:
    return GuardedTrainer(trainer).update(
        work, lambda: parts, policy=trainer.policy(), number=1, response=FRESH
    )


def assert_same(trainer: Trainer, other: Trainer) -> None:
    """Two trainers hold the same bits."""
    for mine, theirs in (
        (trainer.policy(), other.policy()),
        (trainer.state().tensors, other.state().tensors),
    ):
        assert mine.keys() == theirs.keys()
        for name, array in mine.items():
            np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def poisoned_segment(name: str) -> Trajectory:
    tensors = segment_tensors(7)
    rewards = tensors["rewards"].copy()
    rewards[3, 1] = 3e38
    return msgspec.structs.replace(
        segment(name, at=version(0), tensors={**tensors, "rewards": rewards}), actor_id="actor-7"
    )


def test_segment_whose_reward_leaves_float32_is_named_and_the_update_is_undone() -> None:
    trainer, twin = segments.trainer(), segments.trainer()
    sound = [segment(f"t{index}", at=version(0), seed=index) for index in range(5)]
    work = [*sound[:2], poisoned_segment("bad"), *sound[2:]]
    found = updated(trainer, work, parts_of(work))
    assert isinstance(found, PoisonedBatch)
    (culprit,) = found.culprits
    assert (culprit.trajectory_id, culprit.actor_id) == ("bad.0", "actor-7")
    assert (culprit.found.tensor, culprit.found.position) == ("rewards", (3, 1))
    assert_same(trainer, twin)
    # The others are trained as if it had never been there.
    assert updated(trainer, sound, parts_of(sound)) == twin.update(twin.prepare(sound), number=1)
    assert_same(trainer, twin)


def test_single_trajectory_of_a_batch_is_named_by_its_value() -> None:
    work = [poisoned_segment("bad")]
    found = updated(segments.trainer(), work, parts_of(work))
    assert [culprit.trajectory_id for culprit in found.culprits] == ["bad.0"]


@pytest.mark.parametrize("copied_bytes_max", [guarded_update.COPIED_BYTES_MAX, 0])
def test_completion_whose_reward_leaves_float32_is_named_with_its_group(
    monkeypatch: pytest.MonkeyPatch, copied_bytes_max: int
) -> None:
    # Zero bytes: as with a model whose moments are too large to copy before each update.
    monkeypatch.setattr(guarded_update, "COPIED_BYTES_MAX", copied_bytes_max)
    settings = GrpoSettings(minibatches=1, warmup_versions=0)
    trainer, twin = completions.trainer(settings), completions.trainer(settings)
    guarded = GuardedTrainer(trainer)
    sound = completions.batch()
    guarded.update(sound, lambda: parts_of(sound), policy=trainer.policy(), number=1, response=FRESH)
    twin.update(twin.prepare(sound), number=1)
    bad = group("bad", "1+1=", [("2", 1.0), ("3", 1e300), ("4", 0.0)], at=version(0))
    work = [*completions.batch(1), *bad, *completions.batch(2)]
    found = guarded.update(work, lambda: parts_of(work), policy=trainer.policy(), number=2, response=FRESH)
    assert isinstance(found, PoisonedBatch)
    assert [culprit.trajectory_id for culprit in found.culprits] == ["bad.1"]
    for name, array in trainer.policy().items():
        np.testing.assert_array_equal(array, twin.policy()[name], err_msg=name)


def test_state_of_a_large_policy_is_not_even_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = segments.trainer()
    policy, state = trainer.policy(), trainer.state()
    size = sum(array.nbytes for array in policy.values())
    monkeypatch.setattr(guarded_update, "COPIED_BYTES_MAX", 2 * size - 1)
    copies: list[TrainerState] = []
    monkeypatch.setattr(trainer, "state", lambda: copies.append(state) or state)
    sound = [segment("t", at=version(0))]
    GuardedTrainer(trainer).update(sound, lambda: parts_of(sound), policy=policy, number=1, response=FRESH)
    assert copies == []


def test_running_statistics_count_nothing_of_an_update_that_is_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guarded_update, "COPIED_BYTES_MAX", 0)
    policy = build_policy(CARTPOLE, PolicyConfig(kind="mlp", hidden=(8,), normalise_observations=True))
    trainer = ActorCriticTrainer(policy, ActorCriticSettings(), seed=0, device=torch.device("cpu"))
    guarded = GuardedTrainer(trainer)
    sound = [segment(f"t{index}", at=version(0), seed=index) for index in range(5)]
    guarded.update(sound, lambda: parts_of(sound), policy=trainer.policy(), number=1, response=FRESH)
    before = trainer.policy()
    work = [*sound[:2], poisoned_segment("bad"), *sound[2:]]
    found = guarded.update(work, lambda: parts_of(work), policy=before, number=2, response=FRESH)
    assert isinstance(found, PoisonedBatch)
    assert [culprit.trajectory_id for culprit in found.culprits] == ["bad.0"]
    for name, array in trainer.policy().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_replayed_trajectory_whose_unit_leaves_float32_is_named() -> None:
    units = replay.transitions(1)
    rewards = units.tensors["rewards"].copy()
    bad = int(np.argmax(units.tensors["lengths"] == 3))
    # Their discounted sum leaves float32.
    rewards[bad] = 3e38
    work = ReplayUnits(
        ids_B=units.ids_B,
        probabilities_B=units.probabilities_B,
        num_open=units.num_open,
        lags_B=units.lags_B,
        tensors={**units.tensors, "rewards": rewards},
    )
    row_of = units.ids_B // 3
    parts = [(TrajectoryId(f"t{row}.0"), work.rows(row_of == row)) for row in range(4)]
    trainer, twin = replay.learner(), replay.learner()
    found = updated(trainer, work, parts)
    assert isinstance(found, PoisonedBatch)
    (culprit,) = found.culprits
    assert (culprit.trajectory_id, culprit.found.tensor) == (f"t{bad // 3}.0", "rewards")
    assert_same(trainer, twin)


def test_parameters_that_are_not_finite_are_blamed_on_no_trajectory() -> None:
    trainer = segments.trainer()
    broken = {name: np.full_like(array, np.nan) for name, array in trainer.policy().items()}
    trainer.restore(broken, trainer.state())
    work = segments.batch(0)
    with pytest.raises(TidegateError, match="the parameters themselves are not finite"):
        updated(trainer, work, parts_of(work))


def test_update_that_is_not_finite_whatever_it_is_of_ends_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = segments.trainer()

    def update(_batch: Any, **_given: Any) -> dict[str, float]:
        return {"loss": float("nan")}

    monkeypatch.setattr(trainer, "update", update)
    work = segments.batch(0)
    with pytest.raises(TidegateError, match="no single trajectory is the reason"):
        updated(trainer, work, parts_of(work))
