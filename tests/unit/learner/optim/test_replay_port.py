"""What a trainer of replayed units gets, and how it makes up for unequal chances."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.replay import Stream
from tests.support.replay_units import UnitSource
from tidegate.learner.optim.replay_port import ReplayUnits

T, N = 8, 2


def units(probabilities: list[float], *, num_open: int) -> ReplayUnits:
    count = len(probabilities)
    return ReplayUnits(
        ids_B=np.arange(count),
        probabilities_B=np.array(probabilities),
        num_open=num_open,
        lags_B=np.zeros(count, np.int64),
        tensors={},
    )


def test_importance_weights_are_the_definition_s() -> None:
    drawn = units([0.5, 0.25, 0.001], num_open=10)
    slow = [(1.0 / (10 * chance)) ** 0.4 for chance in (0.5, 0.25, 0.001)]
    np.testing.assert_allclose(drawn.importance_weights(0.4), [each / max(slow) for each in slow], rtol=1e-6)


@pytest.mark.parametrize("exponent", [0.0, 0.4, 1.0])
def test_uniform_chances_weigh_alike(exponent: float) -> None:
    np.testing.assert_array_equal(units([0.1] * 3, num_open=10).importance_weights(exponent), [1, 1, 1])


def test_tiny_chance_gives_finite_weights() -> None:
    weights = units([1e-300, 0.5], num_open=2).importance_weights(4.0)
    assert weights.tolist() == [1.0, 0.0]


def test_source_gives_transitions_across_segments(tmp_path: Path) -> None:
    source, stream = UnitSource(tmp_path, num_steps=T, num_envs=N, horizon=3), Stream(3, num_envs=N)
    for index in range(4):
        source.insert(stream.segment(index * T, T), step=index)
    drawn = source.draw(256, step=9)
    assert drawn.tensors["rewards"].shape == (256, 3)
    assert set(np.unique(drawn.lags_B)) == {6, 7, 8, 9}
    lengths = drawn.tensors["lengths"]
    ahead = drawn.tensors["next.observations"] - drawn.tensors["observations"]
    np.testing.assert_allclose(ahead[:, 0], lengths, atol=1e-5)
    crossing = (drawn.tensors["actions"] % T) + lengths > T
    assert crossing.any()
    source.close()


def test_source_gives_sequences(tmp_path: Path) -> None:
    source = UnitSource(tmp_path, num_steps=T, num_envs=N, horizon=6, sequence_period=4)
    stream = Stream(3, num_envs=N)
    for index in range(4):
        source.insert(stream.segment(index * T, T))
    drawn = source.draw(32)
    assert drawn.tensors["observations"].shape == (32, 7, 1)
    assert drawn.tensors["valid"].shape == (32, 6)
    source.close()
