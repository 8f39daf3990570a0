"""Running statistics equal those of all observations at once, and are what numpy and torch normalise by."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from tidegate.core.records import Array
from tidegate.models.normaliser import COUNT, LIMIT, MEAN, VARIANCE, init_statistics, normalised, updated

ALL = np.ones(3, np.bool_)


def observations(seed: int, num_rows: int) -> Array:
    rng = np.random.default_rng(seed)
    return (rng.normal(0.0, 1.0, (num_rows, 3)) * [0.01, 1.0, 50.0] + [0.0, 5.0, -200.0]).astype(np.float32)


@given(st.integers(0, 2**31), st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(sum))
def test_statistics_in_parts_equal_those_of_all_at_once(seed: int, sizes: list[int]) -> None:
    seen = observations(seed, sum(sizes))
    params = init_statistics(3)
    for part in np.split(seen, np.cumsum(sizes)[:-1]):
        params = updated(params, part, is_normalised_I=ALL)
    np.testing.assert_allclose(params[MEAN], seen.mean(axis=0, dtype=np.float64), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(params[VARIANCE], seen.var(axis=0, dtype=np.float64), rtol=1e-2, atol=1e-2)
    assert params[COUNT].tolist() == [sum(sizes)]
    assert all(array.dtype == np.float32 for array in params.values())


def test_fresh_statistics_change_nothing_but_limits() -> None:
    inputs = np.array([[0.5, -3.0, 40.0]], np.float32)
    np.testing.assert_allclose(normalised(init_statistics(3), inputs, np), [[0.5, -3.0, LIMIT]], rtol=1e-6)


def test_normalised_inputs_have_mean_0_and_deviation_1_in_numpy_and_torch() -> None:
    seen = observations(1, 5_000)
    params = updated(init_statistics(3), seen, is_normalised_I=ALL)
    found = normalised(params, seen, np)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.mean(axis=0), 0.0, atol=1e-3)
    np.testing.assert_allclose(found.std(axis=0), 1.0, atol=1e-3)
    tensors = {name: torch.as_tensor(array) for name, array in params.items()}
    np.testing.assert_allclose(found, normalised(tensors, torch.as_tensor(seen), torch).numpy(), atol=1e-6)


def test_inputs_that_are_indices_keep_their_values() -> None:
    params = updated(init_statistics(3), observations(2, 10), is_normalised_I=np.array([True, False, True]))
    assert params[MEAN][1] == 0.0
    assert params[VARIANCE][1] == 1.0
    assert params[MEAN][2] == pytest.approx(-200.0, abs=60.0)
