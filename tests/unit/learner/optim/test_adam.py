import math
import subprocess
import sys
from collections.abc import Callable, Mapping

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from tidegate.learner.optim.adam import AdamW

# Odd sizes: the kernel takes most of a tensor in vectors, and the rest one by one.
SHAPES = {"weight": (33, 17), "bias": (5,), "scale": ()}

# What a learner computes from its start to its second life, for both kinds of policy, and a warm-up.
WHOLE_LEARNER = """
import sys
import torch
import tidegate.learner.main
from tests.unit.learner.optim import test_actor_critic, test_language_model
from tests.unit.learner.test_warmup import EXAMPLES, HELDOUT, SETTINGS, make_model
from tidegate.learner.warmup import supervised_warmup

for tests in (test_actor_critic, test_language_model):
    trainer = tests.trainer()
    trainer.update(trainer.prepare(tests.batch(1)), number=1)
    trainer.restore(trainer.policy(), trainer.state())
    trainer.update(trainer.prepare(tests.batch(2)), number=2)
supervised_warmup(make_model(), EXAMPLES, HELDOUT, SETTINGS, generator=torch.Generator().manual_seed(0))
print(sorted({"torch._dynamo", "torch._inductor", "sympy"} & sys.modules.keys()))
"""


def fresh(seed: int, *, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, dtype=dtype, generator=generator).requires_grad_()
        for name, shape in SHAPES.items()
    }


def give_gradients(parameters: Mapping[str, Tensor], *, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters.values():
        parameter.grad = torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator)


def adamw_of_the_paper(
    value: float,
    gradients: list[float],
    *,
    learning_rates: list[float],
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> float:
    """One parameter, line by line: algorithm 1 of Kingma & Ba, with line 12 of Loshchilov & Hutter's algorithm 2."""
    mean = square = 0.0
    for t, (gradient, learning_rate) in enumerate(zip(gradients, learning_rates, strict=True), start=1):
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient * gradient
        unbiased_mean = mean / (1 - beta1**t)
        unbiased_square = square / (1 - beta2**t)
        value = (
            value
            - learning_rate * weight_decay * value
            - learning_rate * unbiased_mean / (math.sqrt(unbiased_square) + epsilon)
        )
    return value


STEPS = st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(1e-6, 0.1)), min_size=1, max_size=20)


@given(
    start=st.floats(-10.0, 10.0),
    steps=STEPS,
    beta1=st.floats(0.0, 0.99),
    beta2=st.floats(0.5, 0.9999),
    epsilon=st.floats(1e-8, 1e-3),
    weight_decay=st.floats(0.0, 1.0),
)
def test_steps_are_those_of_the_papers(
    start: float,
    steps: list[tuple[float, float]],
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
) -> None:
    parameter = torch.full((9,), start, dtype=torch.float64, requires_grad=True)
    optimizer = AdamW(
        {"only": parameter},
        learning_rate=0.0,
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
        weight_decay=weight_decay,
    )
    for gradient, learning_rate in steps:
        parameter.grad = torch.full_like(parameter, gradient)
        optimizer.learning_rate = learning_rate
        optimizer.step()
    expected = adamw_of_the_paper(
        start,
        [gradient for gradient, _ in steps],
        learning_rates=[learning_rate for _, learning_rate in steps],
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
        weight_decay=weight_decay,
    )
    assert [float(value) for value in parameter.detach()] == pytest.approx([expected] * 9, rel=1e-9, abs=1e-9)


def torch_adam(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.0, betas=(0.8, 0.99), eps=1e-5, fused=True)


def torch_adamw(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.0, betas=(0.8, 0.99), eps=1e-5, weight_decay=0.1, fused=True)


@pytest.mark.parametrize(("make_theirs", "weight_decay"), [(torch_adam, 0.0), (torch_adamw, 0.1)])
def test_fifty_steps_give_the_bits_and_the_state_of_torch(
    make_theirs: Callable[[list[Tensor]], torch.optim.Optimizer], weight_decay: float
) -> None:
    ours, theirs = fresh(0), fresh(0)
    optimizer = AdamW(ours, learning_rate=0.0, beta1=0.8, beta2=0.99, epsilon=1e-5, weight_decay=weight_decay)
    other = make_theirs(list(theirs.values()))
    for step in range(50):
        learning_rate = 0.01 * (1 - step / 50)
        optimizer.learning_rate = learning_rate
        other.param_groups[0]["lr"] = learning_rate
        give_gradients(ours, seed=step)
        give_gradients(theirs, seed=step)
        if step % 7 == 3:
            ours["bias"].grad = theirs["bias"].grad = None
        optimizer.step()
        other.step()
    for name, parameter in ours.items():
        assert torch.equal(parameter, theirs[name])
        kept = other.state[theirs[name]]
        moments = optimizer.moments[name]
        assert list(kept) == ["step", "exp_avg", "exp_avg_sq"]
        assert torch.equal(moments.step, kept["step"])
        assert torch.equal(moments.exp_avg, kept["exp_avg"])
        assert torch.equal(moments.exp_avg_sq, kept["exp_avg_sq"])


def test_gradient_of_another_layout_is_followed_element_by_element() -> None:
    plain, turned = fresh(0), fresh(0)
    give_gradients(plain, seed=1)
    give_gradients(turned, seed=1)
    gradient = turned["weight"].grad
    assert gradient is not None
    turned["weight"].grad = gradient.t().contiguous().t()
    for parameters in (plain, turned):
        AdamW(parameters, learning_rate=0.1).step()
    assert torch.equal(plain["weight"], turned["weight"])


def test_cleared_gradients_move_nothing() -> None:
    parameters = fresh(0)
    optimizer = AdamW(parameters, learning_rate=0.1, weight_decay=0.1)
    give_gradients(parameters, seed=1)
    optimizer.clear_gradients()
    optimizer.step()
    for name, parameter in fresh(0).items():
        assert torch.equal(parameters[name], parameter)
        assert optimizer.moments[name].step == 0


def test_parameter_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises(ValueError, match="'turned' of strides"):
        AdamW({"plain": torch.zeros(2, 3), "turned": torch.zeros(2, 3).t()}, learning_rate=0.1)


def test_parameters_of_two_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match="share one device and dtype"):
        AdamW({"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.float64)}, learning_rate=0.1)


@pytest.mark.slow
def test_learner_trains_and_restores_without_loading_torchs_compiler(pytestconfig: pytest.Config) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHOLE_LEARNER],
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_parameter_may_have_a_rate_of_its_own() -> None:
    plain, scaled = fresh(0), fresh(0)
    for parameters in (plain, scaled):
        give_gradients(parameters, seed=1)
    before = {name: tensor.detach().clone() for name, tensor in plain.items()}
    AdamW(plain, learning_rate=0.01).step()
    optimizer = AdamW(scaled, learning_rate=0.1, rate_factors={"weight": 0.1, "scale": 0.0})
    optimizer.step()
    assert torch.equal(scaled["weight"], plain["weight"])
    assert torch.equal(scaled["scale"], before["scale"])
    moved, of_plain = scaled["bias"] - before["bias"], plain["bias"] - before["bias"]
    torch.testing.assert_close(moved, 10.0 * of_plain, rtol=1e-4, atol=1e-6)
