from typing import Any

import numpy as np
import pytest
import torch

from tidegate.algorithms.transition_batch import TransitionBatch, stack_transitions, transition_tensors
from tidegate.core.errors import RecordError
from tidegate.core.records import Array
from tidegate.core.spaces import BoxSpace, DictSpace, DiscreteSpace, EnvironmentDescription

CPU = torch.device("cpu")
NUM_ROWS, NUM_STEPS = 5, 3
DESCRIPTION = EnvironmentDescription(
    env_id="Made-v0",
    observation_space=DictSpace(
        {"speed": BoxSpace((2,), "float32", (-1.0,), (1.0,)), "gear": DiscreteSpace(4)}
    ),
    action_space=DiscreteSpace(3),
)
EXPECTED = transition_tensors(DESCRIPTION)


def drawn(seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    observations: dict[str, Array] = {
        "observations.speed": rng.normal(size=(NUM_ROWS, 2)).astype(np.float32),
        "observations.gear": rng.integers(0, 4, NUM_ROWS, dtype=np.int32),
    }
    following = {f"next.{name}": array[::-1].copy() for name, array in observations.items()}
    tensors: dict[str, Array] = {
        **observations,
        **following,
        "actions": rng.integers(0, 3, NUM_ROWS, dtype=np.int32),
        "behavior_logprobs": np.zeros(NUM_ROWS, np.float32),
        "rewards": rng.normal(size=(NUM_ROWS, NUM_STEPS)).astype(np.float32),
        "lengths": rng.integers(1, NUM_STEPS + 1, NUM_ROWS, dtype=np.int32),
        "terminated": rng.random(NUM_ROWS) < 0.5,
    }
    for array in tensors.values():
        array.flags.writeable = False
    return tensors


def stacked(tensors: dict[str, Array]) -> TransitionBatch:
    return stack_transitions(tensors, EXPECTED, weights_B=np.ones(NUM_ROWS, np.float32), device=CPU)


def test_drawn_transitions_become_tensors_by_name() -> None:
    tensors = drawn()
    batch = stacked(tensors)
    assert len(batch) == NUM_ROWS
    assert (
        set(batch.observations) == set(batch.next_observations) == {"observations.speed", "observations.gear"}
    )
    for name, tensor in batch.next_observations.items():
        np.testing.assert_array_equal(tensor.numpy(), tensors[f"next.{name}"])
    assert batch.actions_B.dtype == torch.int64
    np.testing.assert_array_equal(batch.rewards_BH.numpy(), tensors["rewards"])


def test_named_tensors_make_the_same_batch_again() -> None:
    batch = stacked(drawn())
    again = TransitionBatch.of(batch.named())
    for name, tensor in batch.named().items():
        assert torch.equal(tensor, again.named()[name])


def test_rows_are_the_same_transitions_in_every_tensor() -> None:
    batch = stacked(drawn())
    part = batch.rows(slice(1, 4))
    assert len(part) == 3
    for name, tensor in part.named().items():
        assert torch.equal(tensor, batch.named()[name][1:4])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lengths", None, "no lengths"),
        ("next.observations.speed", None, "no next.observations.speed"),
        ("observations.speed", np.zeros((NUM_ROWS, 3), np.float32), "observations.speed of shape"),
        ("rewards", np.zeros(NUM_ROWS, np.float32), "rewards of shape"),
        ("rewards", np.zeros((NUM_ROWS, 1), np.float64), "type float64"),
        ("terminated", np.zeros(NUM_ROWS - 1, np.bool_), "terminated of shape"),
        ("actions", np.full(NUM_ROWS, 3, np.int32), "actions from 3 to 3"),
        ("actions", np.full(NUM_ROWS, -1, np.int32), "actions from -1"),
    ],
)
def test_tensors_that_do_not_fit_the_environment_are_refused(name: str, value: Any, message: str) -> None:
    tensors = {key: array for key, array in drawn().items() if key != name}
    if value is not None:
        tensors[name] = value
    with pytest.raises(RecordError, match=message):
        stacked(tensors)
