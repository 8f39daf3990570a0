import numpy as np
import pytest
import torch

from tidegate.core.errors import StaleFolderError
from tidegate.core.records import Array
from tidegate.learner.optim.adam import AdamW
from tidegate.learner.optim.optimizer_state import load_optimizer_arrays, optimizer_arrays


def optimizer(*, num_steps: int, size: int = 3) -> AdamW:
    parameters = {name: torch.ones(size, 2, requires_grad=True) for name in ("a.weight", "b")}
    made = AdamW(parameters, learning_rate=0.1)
    for step in range(num_steps):
        for parameter in parameters.values():
            parameter.grad = torch.full_like(parameter, step + 1.0)
        made.step()
    return made


def same(first: dict[str, Array], second: dict[str, Array]) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def test_moments_are_kept_by_the_names_of_older_checkpoints() -> None:
    arrays = optimizer_arrays(optimizer(num_steps=2))
    assert arrays.keys() == {
        f"optimizer/{name}/{moment}"
        for name in ("a.weight", "b")
        for moment in ("step", "exp_avg", "exp_avg_sq")
    }
    assert all(array.dtype == np.float32 for array in arrays.values())
    assert arrays["optimizer/b/step"].shape == ()
    assert arrays["optimizer/b/step"] == 2
    np.testing.assert_allclose(arrays["optimizer/b/exp_avg"], np.full((3, 2), 0.9 * 0.1 + 0.1 * 2), rtol=1e-6)


def test_arrays_are_copies_and_come_back_as_they_were() -> None:
    trained = optimizer(num_steps=2)
    arrays = optimizer_arrays(trained)
    trained.step()
    assert not same(optimizer_arrays(trained), arrays)
    restored = optimizer(num_steps=5)
    load_optimizer_arrays(restored, arrays)
    assert same(optimizer_arrays(restored), arrays)


def test_moments_stay_contiguous_whatever_the_layout_of_the_arrays() -> None:
    arrays = optimizer_arrays(optimizer(num_steps=2))
    turned = {name: np.asfortranarray(array) if array.ndim else array for name, array in arrays.items()}
    restored = optimizer(num_steps=0)
    load_optimizer_arrays(restored, turned)
    assert same(optimizer_arrays(restored), arrays)
    for moments in restored.moments.values():
        assert moments.exp_avg.is_contiguous()
        assert moments.exp_avg_sq.is_contiguous()


def test_checkpoint_from_before_the_first_step_starts_from_zero_moments() -> None:
    restored = optimizer(num_steps=2)
    load_optimizer_arrays(restored, {"generator": np.zeros(3, dtype=np.uint8)})
    assert same(optimizer_arrays(restored), optimizer_arrays(optimizer(num_steps=0)))


@pytest.mark.parametrize("change", ["missing", "unknown", "another size"])
def test_moments_of_another_network_are_refused_and_change_nothing(change: str) -> None:
    arrays = optimizer_arrays(optimizer(num_steps=2, size=4 if change == "another size" else 3))
    if change == "missing":
        del arrays["optimizer/b/exp_avg"]
    if change == "unknown":
        arrays["optimizer/c/step"] = np.zeros((), dtype=np.float32)
    refusing = optimizer(num_steps=1)
    before = optimizer_arrays(refusing)
    with pytest.raises(StaleFolderError, match="network"):
        load_optimizer_arrays(refusing, arrays)
    assert same(optimizer_arrays(refusing), before)
