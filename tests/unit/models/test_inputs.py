"""Every kind of observation as network inputs: by hand, and numpy beside torch."""

import numpy as np
import torch

from tidegate.core.records import Array
from tidegate.core.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    TupleSpace,
    observation_leaves,
)
from tidegate.models.inputs import FlatInputs

SPACE = DictSpace(
    {
        "angle": BoxSpace((2,), "float64", (-1.0,), (1.0,)),
        "room": DiscreteSpace(3, start=7),
        "pair": TupleSpace((MultiDiscreteSpace((2,), (2, 3), (0, 0)), MultiBinarySpace((2,)))),
        "picture": BoxSpace((1, 2), "uint8", (0.0,), (255.0,)),
        "height": BoxSpace((), "float32", (0.0,), (1.0,)),
    }
)
SEEN: dict[str, Array] = {
    "observations.angle": np.array([[0.5, -0.25], [1.0, 0.0]], np.float32),
    "observations.room": np.array([2, 0], np.int32),
    "observations.pair.0": np.array([[1, 2], [0, 0]], np.int32),
    "observations.pair.1": np.array([[1, 0], [0, 0]], np.uint8),
    "observations.picture": np.array([[[255, 0]], [[51, 102]]], np.uint8),
    "observations.height": np.array([0.75, 0.125], np.float32),
}
EXPECTED = [
    [0.5, -0.25, 0, 0, 1, 0, 1, 0, 0, 1, 1, 0, 1.0, 0.0, 0.75],
    [1.0, 0.0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0.2, 0.4, 0.125],
]


def test_all_parts_side_by_side() -> None:
    inputs = FlatInputs(observation_leaves(SPACE))
    found = inputs(SEEN, np)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, EXPECTED, rtol=1e-6)
    assert inputs.num_inputs == 15
    assert inputs.is_continuous_I.tolist() == [True] * 2 + [False] * 10 + [True] * 3


def test_torch_makes_the_same_inputs_with_any_leading_dimensions() -> None:
    inputs = FlatInputs(observation_leaves(SPACE))
    for leading in ((), (2,), (1, 2)):
        seen = {
            name: torch.as_tensor(array[0] if leading == () else array.reshape(*leading, *array.shape[1:]))
            for name, array in SEEN.items()
        }
        found = inputs(seen, torch)
        assert found.dtype == torch.float32
        assert tuple(found.shape) == (*leading, 15)
        np.testing.assert_allclose(found.reshape(-1, 15).numpy(), EXPECTED[: found.numel() // 15], rtol=1e-6)


def test_one_flat_box_is_passed_without_a_copy() -> None:
    inputs = FlatInputs(observation_leaves(BoxSpace((4,), "float32", (-1.0,), (1.0,))))
    seen = np.zeros((3, 4), np.float32)
    assert inputs({"observations": seen}, np) is seen
