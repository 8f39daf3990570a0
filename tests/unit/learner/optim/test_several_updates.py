"""Several updates of one batch: the same as one after another, and of whole groups."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.environments import CARTPOLE
from tests.unit.learner.trajectories import group, segment, segment_tensors, version
from tidegate.algorithms.objectives import ActorCriticSettings
from tidegate.core.errors import RecordError
from tidegate.core.records import Trajectory
from tidegate.core.response import FRESH, Response, Tier, respond
from tidegate.learner.optim.actor_critic import ActorCriticTrainer
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.optim.replay_port import ReplayUnits
from tidegate.learner.optim.several_updates import SeveralUpdates, parts_of
from tidegate.models.policies import build_policy
from tidegate.runtime.config import PolicyConfig

SETTINGS = ActorCriticSettings(epochs=2, minibatches=2, anneal_updates=6)


def trainer() -> ActorCriticTrainer:
    policy = build_policy(CARTPOLE, PolicyConfig(kind="mlp", hidden=(8, 8)))
    return ActorCriticTrainer(policy, SETTINGS, seed=0, device=torch.device("cpu"))


def batch(seed: int, *, size: int = 4) -> list[Trajectory]:
    return [segment(f"t{seed}-{index}", at=version(0), seed=10 * seed + index) for index in range(size)]


def units(count: int) -> ReplayUnits:
    return ReplayUnits(
        ids_B=np.arange(count),
        probabilities_B=np.full(count, 0.1),
        num_open=count,
        lags_B=np.zeros(count, np.int64),
        tensors={"rewards": np.arange(count, dtype=np.float32)},
    )


class Recorder:
    """A trainer of units that keeps what it is given; the priority of a unit is its id."""

    def __init__(self, *, gives_priorities: bool = True) -> None:
        self.calls: list[tuple[list[int], int, Response]] = []
        self._gives_priorities = gives_priorities

    def prepare(self, batch: ReplayUnits, /) -> ReplayUnits:
        return batch

    def update(self, batch: ReplayUnits, *, number: int, response: Response = FRESH) -> dict[str, float]:
        assert batch.tensors["rewards"].tolist() == batch.ids_B.tolist()
        self.calls.append((batch.ids_B.tolist(), number, response))
        return {"loss": float(number), **({"kl": 1.0} if number % 2 else {})}

    def priorities(self) -> NDArray[np.float32] | None:
        return np.array(self.calls[-1][0], np.float32) if self._gives_priorities else None

    def policy(self) -> dict[str, Any]:
        return {}

    def state(self) -> TrainerState:
        return TrainerState({}, {})

    def restore(self, policy: object, state: object) -> None: ...


def test_updates_are_those_of_one_after_another() -> None:
    several, single = SeveralUpdates(trainer(), count=2), trainer()
    for number in (1, 2, 3):
        whole = batch(number)
        several.update(several.prepare(whole), number=number)
        for index in (0, 1):
            part = whole[2 * index : 2 * index + 2]
            single.update(single.prepare(part), number=2 * number - 1 + index)
    for name, array in single.policy().items():
        np.testing.assert_array_equal(several.policy()[name], array)
    for name, array in single.state().tensors.items():
        np.testing.assert_array_equal(several.state().tensors[name], array)


def test_metrics_are_the_means_of_the_updates_and_their_number() -> None:
    made = SeveralUpdates(Recorder(), count=3)
    metrics = made.update(made.prepare(units(6)), number=2)
    assert metrics == {"loss": 5.0, "kl": 1.0, "updates": 3.0}


def test_updates_are_numbered_without_gaps() -> None:
    inner = Recorder()
    made = SeveralUpdates(inner, count=3)
    for number in (1, 2):
        made.update(made.prepare(units(3)), number=number)
    assert [number for _, number, _ in inner.calls] == [1, 2, 3, 4, 5, 6]


def test_an_invalid_part_leaves_the_policy_as_it_was() -> None:
    inner = trainer()
    made, before = SeveralUpdates(inner, count=2), inner.policy()
    tensors = segment_tensors(1)
    del tensors["actions"]
    with pytest.raises(RecordError):
        made.prepare([*batch(1, size=3), segment("invalid", at=version(0), tensors=tensors)])
    for name, array in inner.policy().items():
        np.testing.assert_array_equal(before[name], array)


def test_groups_are_never_divided() -> None:
    trajectories: list[Trajectory] = []
    for index, size in enumerate((3, 1, 2, 2)):
        trajectories += group(f"g{index}", "1+1=", [("2", 1.0)] * size, at=version(0))
    assert parts_of(trajectories, 2) == [slice(0, 4), slice(4, 8)]
    assert parts_of(trajectories, 3) == [slice(0, 3), slice(3, 4), slice(4, 8)]


def test_parts_are_as_equal_as_groups_allow_and_none_is_empty() -> None:
    assert parts_of(batch(1), 4) == [slice(index, index + 1) for index in range(4)]
    assert parts_of(batch(1, size=1), 4) == [slice(0, 1)]
    assert parts_of(units(5), 2) == [slice(0, 2), slice(2, 5)]


def test_every_part_has_its_weights_with_mean_one() -> None:
    inner = Recorder()
    made = SeveralUpdates(inner, count=2)
    made.update(made.prepare(units(4)), number=1, response=Response(tier=6, weights=(0.5, 1.5, 1.0, 1.0)))
    assert [response.weights for _, _, response in inner.calls] == [(0.5, 1.5), (1.0, 1.0)]
    made.update(made.prepare(units(2)), number=2, response=Response(tier=6, weights=(0.5, 1.5)))
    assert [response.weights for _, _, response in inner.calls[2:]] == [(1.0,), (1.0,)]
    made.update(made.prepare(units(2)), number=3)
    assert inner.calls[-1][2] == FRESH


def test_part_whose_weights_are_all_nothing_counts_each_sample_the_same() -> None:
    inner = Recorder()
    made = SeveralUpdates(inner, count=2)
    response = respond((Tier(from_lag=21, recency_decay=0.9),), [0, 0, 9000, 12_000])
    made.update(made.prepare(units(4)), number=1, response=response)
    assert [given.weights for _, _, given in inner.calls] == [(1.0, 1.0), ()]


def test_priorities_are_those_of_every_unit_in_the_order_of_the_batch() -> None:
    made = SeveralUpdates(Recorder(), count=2)
    made.update(made.prepare(units(5)), number=1)
    assert (found := made.priorities()) is not None
    assert found.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    without = SeveralUpdates(Recorder(gives_priorities=False), count=2)
    without.update(without.prepare(units(5)), number=1)
    assert without.priorities() is None
