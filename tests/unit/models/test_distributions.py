"""Distributions of actions: numpy and torch alike, sampled as their logprobs say, densities that integrate to 1."""

import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.typing import NDArray

from tidegate.core.errors import ConfigError
from tidegate.core.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
)
from tidegate.models.categorical import sample_rows
from tidegate.models.distributions import ActionDistribution, action_distribution
from tidegate.models.gaussian import SquashedGaussian

UNBOUNDED = BoxSpace((2, 2), "float32", (-math.inf,), (math.inf,))
BOUNDED = BoxSpace((2,), "float32", (-2.0, 0.0), (2.0, 10.0))
MIXED = MultiDiscreteSpace((3,), (3, 2, 4), (0, 5, -1))

MADE: dict[str, Callable[[], ActionDistribution]] = {
    "discrete": lambda: action_distribution(DiscreteSpace(5, start=3)),
    "multi_discrete": lambda: action_distribution(MIXED),
    "multi_discrete of one size": lambda: action_distribution(MultiDiscreteSpace((2, 2), (3,) * 4, (0,) * 4)),
    "multi_binary": lambda: action_distribution(MultiBinarySpace((2, 2))),
    "gaussian": lambda: action_distribution(UNBOUNDED),
    "squashed": lambda: action_distribution(BOUNDED, squash=True),
}
each = pytest.mark.parametrize("kind", MADE)


def outputs_of(actions: ActionDistribution, seed: int, *shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0.0, 0.7, (*shape, actions.num_outputs)).astype(np.float32)


def as_torch(actions: NDArray[Any]) -> torch.Tensor:
    return torch.as_tensor(actions).to(torch.int64 if actions.dtype == np.int32 else torch.float32)


@each
@given(seed=st.integers(0, 2**31))
def test_numpy_and_torch_agree(kind: str, seed: int) -> None:
    distribution = MADE[kind]()
    outputs = outputs_of(distribution, seed, 6)
    taken, _ = distribution.sample(outputs, np.random.default_rng(seed))
    found = distribution.logprobs_and_entropy(outputs, taken, np)
    expected = distribution.logprobs_and_entropy(torch.as_tensor(outputs), as_torch(taken), torch)
    for mine, other in zip(found, expected, strict=True):
        assert mine.dtype == np.float32
        assert other.dtype == torch.float32
        np.testing.assert_allclose(mine, other.numpy(), atol=2e-4)


@each
def test_sampled_actions_have_the_recorded_shape_type_and_logprob(kind: str) -> None:
    distribution = MADE[kind]()
    outputs = outputs_of(distribution, 1, 50)
    taken, logprobs = distribution.sample(outputs, np.random.default_rng(0))
    assert taken.shape == (50, *distribution.action_shape)
    assert taken.dtype == distribution.action_dtype
    assert logprobs.dtype == np.float32
    np.testing.assert_allclose(logprobs, distribution.logprobs(outputs, taken, np), atol=1e-4)
    np.testing.assert_allclose(
        distribution.entropy(outputs, np), distribution.logprobs_and_entropy(outputs, taken, np)[1]
    )


@each
def test_leading_dimensions_are_kept(kind: str) -> None:
    distribution = MADE[kind]()
    outputs = outputs_of(distribution, 2, 3 * 4)
    taken, logprobs = distribution.sample(outputs, np.random.default_rng(0))
    shaped = taken.reshape(3, 4, *distribution.action_shape)
    found = distribution.logprobs(outputs.reshape(3, 4, -1), shaped, np)
    np.testing.assert_allclose(found, logprobs.reshape(3, 4), atol=1e-4)


@each
def test_entropy_is_the_mean_of_the_negative_logprob(kind: str) -> None:
    distribution = MADE[kind]()
    outputs = outputs_of(distribution, 3, 1)
    _, logprobs = distribution.sample(np.repeat(outputs, 200_000, axis=0), np.random.default_rng(0))
    assert float(distribution.entropy(outputs, np)[0]) == pytest.approx(-float(logprobs.mean()), abs=0.02)


@each
def test_the_mode_is_at_least_as_probable_as_any_sample(kind: str) -> None:
    distribution = MADE[kind]()
    outputs = outputs_of(distribution, 4, 1)
    many = np.repeat(outputs, 1_000, axis=0)
    _, logprobs = distribution.sample(many, np.random.default_rng(0))
    greedy = distribution.mode(outputs)
    assert greedy.shape == (1, *distribution.action_shape)
    assert greedy.dtype == distribution.action_dtype
    if kind != "squashed":  # whose greedy action is tanh of the mean
        assert float(distribution.logprobs(outputs, greedy, np)[0]) >= float(logprobs.max()) - 1e-5


@pytest.mark.parametrize(
    ("space", "num_actions"), [(DiscreteSpace(4), 4), (MIXED, 3 * 2 * 4), (MultiBinarySpace((3,)), 2**3)]
)
def test_discrete_actions_are_sampled_as_often_as_their_logprobs_say(space: Space, num_actions: int) -> None:
    distribution = action_distribution(space)
    outputs = outputs_of(distribution, 5, 1)
    count = 100_000
    taken, logprobs = distribution.sample(np.repeat(outputs, count, axis=0), np.random.default_rng(0))
    actions, first, counts = np.unique(
        taken.reshape(count, -1), axis=0, return_index=True, return_counts=True
    )
    expected = np.exp(logprobs[first].astype(np.float64))
    assert expected.sum() == pytest.approx(1.0, abs=0.01)
    # Six standard deviations of a share.
    assert (np.abs(counts / count - expected) < 6 * np.sqrt(expected * (1 - expected) / count)).all()
    assert len(actions) == num_actions


def test_choices_are_independent_softmaxes_of_their_own_outputs() -> None:
    distribution = action_distribution(MIXED)
    outputs = outputs_of(distribution, 6, 1)
    parts = np.split(outputs[0].astype(np.float64), [3, 5])
    action = np.array([[2, 0, 3]], dtype=np.int32)
    expected = sum(
        part[value] - math.log(np.exp(part).sum()) for part, value in zip(parts, action[0], strict=True)
    )
    assert float(distribution.logprobs(outputs, action, np)[0]) == pytest.approx(expected, abs=1e-5)


def integral(
    distribution: ActionDistribution, outputs: NDArray[np.float32], *, low: float, high: float
) -> float:
    grid = np.linspace(low, high, 400_001)[1:-1]
    middles = ((grid[1:] + grid[:-1]) / 2).astype(np.float32)
    many = np.repeat(outputs, len(middles), axis=0)
    densities = np.exp(distribution.logprobs(many, middles[:, None], np).astype(np.float64))
    return float(densities.sum() * (grid[1] - grid[0]))


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.8, -1.0), (-1.5, 0.3)])
def test_densities_integrate_to_one(mean: float, log_std: float) -> None:
    outputs = np.array([[mean, log_std]], np.float32)
    plain = action_distribution(BoxSpace((1,), "float32", (-math.inf,), (math.inf,)))
    assert integral(plain, outputs, low=-20.0, high=20.0) == pytest.approx(1.0, abs=1e-3)
    squashed = action_distribution(BoxSpace((1,), "float32", (-3.0,), (5.0,)), squash=True)
    assert integral(squashed, outputs, low=-1.0, high=1.0) == pytest.approx(1.0, abs=2e-3)


def test_golden_numbers() -> None:
    """By hand: log(0.75) and the entropy of (0.75, 0.25); a standard normal at 1; tanh's slope at 0.5."""
    coin = np.log(np.array([[3.0, 1.0]], np.float32))
    discrete = action_distribution(DiscreteSpace(2))
    assert float(discrete.logprobs(coin, np.array([0]), np)[0]) == pytest.approx(-0.287682, abs=1e-6)
    assert float(discrete.entropy(coin, np)[0]) == pytest.approx(0.562335, abs=1e-6)
    standard = np.zeros((1, 2), np.float32)
    normal = action_distribution(BoxSpace((1,), "float32", (-math.inf,), (math.inf,)))
    assert float(normal.logprobs(standard, np.ones((1, 1), np.float32), np)[0]) == pytest.approx(
        -1.418939, abs=1e-6
    )
    assert float(normal.entropy(standard, np)[0]) == pytest.approx(1.418939, abs=1e-6)
    squashed = action_distribution(BoxSpace((1,), "float32", (-1.0,), (1.0,)), squash=True)
    # u = 0.5493061, log N(u) = -1.0698072, log(1 - 0.25) = -0.2876821
    half = np.full((1, 1), 0.5, np.float32)
    assert float(squashed.logprobs(standard, half, np)[0]) == pytest.approx(-0.782125, abs=1e-5)


def test_an_action_of_probability_zero_is_never_drawn() -> None:
    logits = np.tile(np.array([-1e9, 0.0, -1e9], dtype=np.float32), (10_000, 1))
    actions, _ = sample_rows(logits, np.random.default_rng(0))
    assert set(actions.tolist()) == {1}


LOGITS = st.lists(
    st.lists(st.floats(-200.0, 200.0, width=32), min_size=3, max_size=3), min_size=1, max_size=20
)


@given(LOGITS, st.integers(0, 2**31))
def test_drawn_actions_exist_and_have_a_probability(logits: list[list[float]], seed: int) -> None:
    actions, logprobs = sample_rows(np.array(logits, dtype=np.float32), np.random.default_rng(seed))
    assert actions.dtype == np.int32
    assert ((actions >= 0) & (actions < 3)).all()
    assert np.isfinite(logprobs).all()
    assert (logprobs <= 0.0).all()
    expected = torch.log_softmax(torch.tensor(logits), dim=-1).numpy()
    np.testing.assert_allclose(logprobs, expected[np.arange(len(actions)), actions], atol=1e-3)


def test_environments_get_their_own_numbers() -> None:
    assert action_distribution(DiscreteSpace(5, start=3)).environment_actions(
        np.array([0, 4], np.int32)
    ).tolist() == [3, 7]
    assert action_distribution(MIXED).environment_actions(np.array([[2, 1, 0]], np.int32)).tolist() == [
        [2, 6, -1]
    ]
    flags = action_distribution(MultiBinarySpace((2, 2))).environment_actions(
        np.array([[1, 0, 0, 1]], np.int32)
    )
    assert flags.tolist() == [[[1, 0], [0, 1]]]
    assert flags.dtype == np.int8


@pytest.mark.parametrize("squash", [False, True])
def test_bounded_actions_are_scaled_to_the_bounds_and_never_pass_them(squash: bool) -> None:
    distribution = action_distribution(BOUNDED, squash=squash)
    given_ = np.array([[-1.0, -1.0], [0.5, 0.0], [1.0, 1.0], [9.0, -9.0]], np.float32)
    found = distribution.environment_actions(given_)
    assert found.tolist() == [[-2.0, 0.0], [1.0, 5.0], [2.0, 10.0], [2.0, 0.0]]
    assert found.dtype == np.float32


def test_actions_with_one_bound_or_none_are_only_clipped() -> None:
    half = action_distribution(BoxSpace((2,), "float64", (0.0, -math.inf), (math.inf, 3.4028235e38)))
    found = half.environment_actions(np.array([[-1.0, -7.0], [5.0, 7.0]], np.float32))
    assert found.tolist() == [[0.0, -7.0], [5.0, 7.0]]
    assert found.dtype == np.float64


def test_extreme_outputs_give_finite_logprobs() -> None:
    for kind, make in MADE.items():
        distribution = make()
        for value in (-1e4, 1e4):
            outputs = np.full((3, distribution.num_outputs), value, np.float32)
            taken, logprobs = distribution.sample(outputs, np.random.default_rng(0))
            assert np.isfinite(logprobs).all(), kind
            assert np.isfinite(distribution.environment_actions(taken)).all(), kind


def test_the_reparameterised_sample_carries_the_gradient_of_its_outputs() -> None:
    distribution = action_distribution(BOUNDED, squash=True)
    assert isinstance(distribution, SquashedGaussian)
    outputs = torch.tensor(outputs_of(distribution, 8, 5), requires_grad=True)
    noise = torch.tensor(np.random.default_rng(0).standard_normal((5, 2)), dtype=torch.float32)
    taken, logprobs = distribution.from_noise(outputs, noise, torch)
    assert taken.shape == (5, 2)
    expected = distribution.logprobs(outputs, taken, torch)
    torch.testing.assert_close(logprobs, expected, atol=1e-3, rtol=1e-3)
    (gradient,) = torch.autograd.grad(taken.sum() + logprobs.sum(), outputs)
    assert float(gradient.abs().min()) > 0.0


@pytest.mark.parametrize(
    ("space", "squash", "problem"),
    [
        (DictSpace({"a": DiscreteSpace(2)}), False, "several parts"),
        (DiscreteSpace(2), True, "not continuous"),
        (UNBOUNDED, True, "need bounds"),
        (BoxSpace((1,), "int64", (0.0,), (3.0,)), False, "type int64"),
    ],
)
def test_a_space_without_a_distribution_is_refused(space: Space, squash: bool, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        action_distribution(space, squash=squash)
