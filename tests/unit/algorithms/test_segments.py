import numpy as np
import pytest
import torch

from tests.support.segments import NUM_ACTIONS, OBSERVATION_SIZE, random_segment
from tidegate.algorithms.segments import SEGMENT_TENSORS, check_segment, stack_segments
from tidegate.core.errors import RecordError
from tidegate.core.records import Array

CPU = torch.device("cpu")


def check(tensors: dict[str, Array]) -> tuple[int, int]:
    return check_segment(
        tensors, name="Trajectory 't.0'", observation_size=OBSERVATION_SIZE, num_actions=NUM_ACTIONS
    )


def test_a_recorded_segment_passes_with_its_steps_and_environments() -> None:
    assert check(random_segment(0, num_steps=5, num_envs=3)) == (5, 3)


def test_flags_may_travel_as_bytes() -> None:
    segment = random_segment(0, num_steps=5, num_envs=3)
    for name in ("terminated", "truncated", "valid"):
        segment[name] = segment[name].astype(np.uint8)
    check(segment)
    assert stack_segments([segment], device=CPU).valid_TN.dtype == torch.bool


@pytest.mark.parametrize("name", sorted(SEGMENT_TENSORS))
def test_a_segment_without_a_tensor_is_refused_by_its_name(name: str) -> None:
    segment = random_segment(0, num_steps=5, num_envs=3)
    del segment[name]
    with pytest.raises(RecordError, match=name):
        check(segment)


@pytest.mark.parametrize("name", sorted(SEGMENT_TENSORS))
def test_a_truncated_tensor_is_refused_by_its_name(name: str) -> None:
    segment = random_segment(0, num_steps=5, num_envs=3)
    segment[name] = segment[name][:, :-1]
    # Cutting the logprobs says that the segment is narrower, and then the first of the others is the wrong one.
    with pytest.raises(RecordError, match="observations" if name == "behavior_logprobs" else name):
        check(segment)


@pytest.mark.parametrize("name", sorted(SEGMENT_TENSORS))
def test_a_tensor_of_another_type_is_refused_by_its_name(name: str) -> None:
    segment = random_segment(0, num_steps=5, num_envs=3)
    segment[name] = segment[name].astype(np.float64)
    with pytest.raises(RecordError, match=name):
        check(segment)


@pytest.mark.parametrize("action", [-1, NUM_ACTIONS])
def test_an_action_that_the_policy_does_not_have_is_refused(action: int) -> None:
    segment = random_segment(0, num_steps=5, num_envs=3)
    segment["actions"][2, 1] = action
    with pytest.raises(RecordError, match="actions"):
        check(segment)


def test_stacking_puts_segments_side_by_side() -> None:
    segments = [random_segment(seed, num_steps=4, num_envs=envs) for seed, envs in ((0, 2), (1, 3))]
    batch = stack_segments(segments, device=CPU)
    assert batch.observations_SNO.shape == (5, 5, OBSERVATION_SIZE)
    np.testing.assert_array_equal(batch.rewards_TN[:, 2:].numpy(), segments[1]["rewards"])
    assert batch.num_steps() == sum(int(segment["valid"].sum()) for segment in segments)


def test_segments_of_different_lengths_make_no_batch() -> None:
    segments = [random_segment(0, num_steps=steps, num_envs=2) for steps in (4, 5)]
    with pytest.raises(RecordError, match="one length"):
        stack_segments(segments, device=CPU)
    with pytest.raises(RecordError, match="one length"):
        stack_segments([], device=CPU)
