"""Targets of Q-learning beside loops over single steps, numpy beside torch, and golden numbers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from tests.reference import q_learning as slow
from tidegate.algorithms.q_learning import double_q_values, q_learning_loss, values_of
from tidegate.algorithms.q_targets import rescaled, sequence_targets, transition_targets, unscaled

GOLDEN = Path(__file__).parents[2] / "golden" / "q_learning.json"
SEEDS = st.integers(0, 2**31)
N = 3


def numbers(tensor: torch.Tensor) -> list[float]:
    return [float(value) for value in tensor.detach()]


def sequence(seed: int, num_steps: int, *, end_share: float = 0.3) -> dict[str, Any]:
    """Steps of N environments, of which some end, by termination or truncation."""
    rng = np.random.default_rng(seed)
    chance_TN = rng.random((num_steps, N))
    return {
        "rewards": rng.normal(0, 2, (num_steps, N)),
        "terminated": chance_TN < end_share / 2,
        "truncated": (chance_TN >= end_share / 2) & (chance_TN < end_share),
        "bootstrap": rng.normal(0, 3, (num_steps + 1, N)),
    }


def fast(made: dict[str, Any], xp: Any, **settings: Any) -> Any:
    arrays = {name: torch.as_tensor(array) if xp is torch else array for name, array in made.items()}
    truncated = arrays.pop("truncated")
    return sequence_targets(**arrays, ended=arrays["terminated"] | truncated, xp=xp, **settings)


@pytest.mark.parametrize("xp", [np, torch])
@given(SEEDS, st.integers(1, 12), st.integers(1, 6), st.booleans())
def test_targets_of_a_sequence_equal_sums_over_single_steps(
    xp: Any, seed: int, num_steps: int, n_steps: int, rescale: bool
) -> None:
    made = sequence(seed, num_steps)
    found_TN = np.asarray(fast(made, xp, n_steps=n_steps, discount=0.9, rescale=rescale))
    for env in range(N):
        column = {name: array[:, env].tolist() for name, array in made.items()}
        values_after = column.pop("bootstrap")[1:]
        expected = [
            slow.target(
                **column,
                values_after=values_after,
                start=start,
                n_steps=n_steps,
                discount=0.9,
                rescale=rescale,
            )
            for start in range(num_steps)
        ]
        assert found_TN[:, env].tolist() == pytest.approx(expected, abs=1e-7)


@given(SEEDS, st.integers(1, 5), st.booleans())
def test_transitions_have_the_targets_of_their_steps_in_the_sequence(
    seed: int, n_steps: int, rescale: bool
) -> None:
    num_steps = 12
    made = sequence(seed, num_steps)
    ended_TN = made["terminated"] | made["truncated"]
    whole_TN = fast(made, np, n_steps=n_steps, discount=0.9, rescale=rescale)
    for start in range(num_steps - n_steps + 1):
        for env in range(N):
            ends = np.flatnonzero(ended_TN[start : start + n_steps, env])
            length = int(ends[0]) + 1 if len(ends) else n_steps
            rewards_1n = np.zeros((1, n_steps))
            rewards_1n[0, :length] = made["rewards"][start : start + length, env]
            last = start + length - 1
            arrays = (
                rewards_1n,
                np.array([length], np.int32),
                np.array([made["terminated"][last, env]]),
                np.array([made["bootstrap"][last + 1, env]]),
            )
            rewards, lengths, terminated, bootstrap = arrays
            found = transition_targets(
                rewards, lengths, terminated, bootstrap, np, discount=0.9, rescale=rescale
            )
            rewards, lengths, terminated, bootstrap = (torch.as_tensor(array) for array in arrays)
            found_t = transition_targets(
                rewards, lengths, terminated, bootstrap, torch, discount=0.9, rescale=rescale
            )
            # PyTorch's powers of the discount are of single precision, with a target of up to 20.
            expected = pytest.approx(float(whole_TN[start, env]), abs=1e-5)
            assert float(found[0]) == expected
            assert float(found_t[0]) == expected


@pytest.mark.parametrize("xp", [np, torch])
@given(value=st.floats(-1e6, 1e6))
def test_rescaling_is_the_papers_and_is_inverted(xp: Any, value: float) -> None:
    values = np.array([value]) if xp is np else torch.tensor([value], dtype=torch.float64)
    small = rescaled(values, xp)
    assert float(small[0]) == pytest.approx(slow.rescaled(value), rel=1e-12, abs=1e-12)
    assert float(unscaled(small, xp)[0]) == pytest.approx(value, rel=1e-9, abs=1e-9)


def test_rescaling_keeps_float32_and_its_precision() -> None:
    values = np.array([-1e4, -1.0, -1e-3, 0.0, 1e-3, 1.0, 475.0, 1e5], np.float32)
    back = unscaled(rescaled(values, np), np)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, values, rtol=1e-5, atol=1e-6)


def test_long_transitions_without_an_end_forget_the_bootstrap() -> None:
    ones = torch.ones(1, 400)
    lengths, terminated = torch.tensor([400]), torch.tensor([False])
    for bootstrap in (-5.0, 5.0):
        found = transition_targets(ones, lengths, terminated, torch.tensor([bootstrap]), torch, discount=0.9)
        assert float(found) == pytest.approx(10.0, abs=1e-4)


def test_terminated_target_ignores_even_an_infinite_bootstrap() -> None:
    found = transition_targets(
        torch.ones(1, 1),
        torch.tensor([1]),
        torch.tensor([True]),
        torch.tensor([torch.inf]),
        torch,
        discount=1.0,
    )
    assert numbers(found) == [1.0]


@given(SEEDS, st.integers(1, 5))
def test_double_q_takes_the_action_from_one_network_and_its_value_from_the_other(
    seed: int, num_actions: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    online, target = torch.randn(2, 4, 3, num_actions, generator=generator)
    found = double_q_values(online, target)
    for row in range(4):
        for column in range(3):
            expected = slow.double_q_value(numbers(online[row, column]), numbers(target[row, column]))
            assert float(found[row, column]) == expected
    assert bool((found <= target.amax(-1)).all())
    assert torch.equal(double_q_values(target, target), target.amax(-1))


@given(SEEDS, st.floats(0.1, 3.0))
def test_loss_equals_the_weighted_mean_of_single_losses(seed: int, huber_width: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    values, targets, weights = torch.randn(3, 8, dtype=torch.float64, generator=generator)
    found = q_learning_loss(values, targets, weights.abs(), huber_width=huber_width)
    expected = slow.loss(
        values=numbers(values),
        targets=numbers(targets),
        weights=numbers(weights.abs()),
        huber_width=huber_width,
    )
    assert float(found.total) == pytest.approx(expected, rel=1e-9)


def test_gradient_of_an_error_is_clipped_to_the_width_and_targets_have_none() -> None:
    values = torch.tensor([0.0, 0.0, 0.0], requires_grad=True)
    targets = torch.tensor([0.5, 10.0, -10.0])
    (gradient,) = torch.autograd.grad(
        q_learning_loss(values, targets, torch.ones(3), huber_width=1.0).total, [values]
    )
    assert numbers(3 * gradient) == pytest.approx([-0.5, -1.0, 1.0])


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match="targets_B has shape"):
        q_learning_loss(torch.zeros(4), torch.zeros(4, 1), torch.ones(4), huber_width=1.0)
    with pytest.raises(ValueError, match="values_B has dtype"):
        q_learning_loss(torch.zeros(4, dtype=torch.long), torch.zeros(4), torch.ones(4), huber_width=1.0)


def golden_numbers() -> dict[str, list[float] | float]:
    """Targets and losses of fixed inputs."""
    made = sequence(7, 4)
    rng = np.random.default_rng(8)
    q_BA, online_BA, target_BA = (torch.tensor(rng.normal(0, 2, (6, 3))) for _ in range(3))
    actions_B = torch.tensor(rng.integers(3, size=6))
    weights_B = torch.tensor(rng.random(6))
    targets_B = transition_targets(
        torch.tensor(rng.normal(0, 1, (6, 2))),
        torch.full((6,), 2),
        torch.tensor(rng.random(6) < 0.3),
        double_q_values(online_BA, target_BA),
        torch,
        discount=0.99,
        rescale=True,
    )
    return {
        "sequence": fast(made, np, n_steps=2, discount=0.99)[:, 0].tolist(),
        "sequence_rescaled": fast(made, np, n_steps=2, discount=0.99, rescale=True)[:, 0].tolist(),
        "transitions": numbers(targets_B),
        "loss": float(
            q_learning_loss(values_of(q_BA, actions_B), targets_B, weights_B, huber_width=1.0).total
        ),
    }


def test_golden_numbers() -> None:
    golden = json.loads(GOLDEN.read_text())
    found = golden_numbers()
    assert found.keys() == golden.keys()
    for name, numbers in found.items():
        assert numbers == pytest.approx(golden[name], rel=1e-6), name


def test_targets_load_no_torch() -> None:
    code = "import sys, tidegate.algorithms.q_targets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
