import numpy as np
import pytest
import torch

from tests.support.segments import DESCRIPTION, NUM_ACTIONS, OBSERVATION_SIZE, random_segment
from tests.unit.models import test_inputs
from tidegate.algorithms.frame_stacks import FrameRecorder, observed, with_frames
from tidegate.algorithms.segment_batch import stack_segments
from tidegate.algorithms.segments import check_segment, segment_tensors
from tidegate.core.errors import ConfigError, RecordError
from tidegate.core.records import Array
from tidegate.core.spaces import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    EnvironmentDescription,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    observation_leaves,
)
from tidegate.models.distributions import action_distribution

PICTURE = "observations.picture"
CPU = torch.device("cpu")
TENSORS = segment_tensors(DESCRIPTION)
CHOICES = MultiDiscreteSpace((2,), (3, 2), (0, 1))
# Every kind of observation, with actions of two choices.
MIXED = EnvironmentDescription("Mixed-v0", test_inputs.SPACE, CHOICES)


def check(tensors: dict[str, Array]) -> tuple[int, int]:
    return check_segment(tensors, TENSORS, name="Trajectory 't.0'")


def mixed_segment(*, num_steps: int = 4, num_envs: int = 2) -> dict[str, Array]:
    segment = random_segment(0, num_steps=num_steps, num_envs=num_envs)
    del segment["observations"]
    for name, array in test_inputs.SEEN.items():
        segment[name] = np.resize(array, (num_steps + 1, num_envs, *array.shape[1:]))
    segment["actions"] = np.ones((num_steps, num_envs, 2), np.int32)
    return with_frames(segment, observation_leaves(MIXED.observation_space), name="t")


def test_a_recorded_segment_passes_with_its_steps_and_environments() -> None:
    assert check(random_segment(0, num_steps=5, num_envs=3)) == (5, 3)


def test_flags_may_travel_as_bytes() -> None:
    segment = random_segment(0, num_steps=5, num_envs=3)
    for name in ("terminated", "truncated", "valid"):
        segment[name] = segment[name].astype(np.uint8)
    check(segment)
    assert stack_segments([segment], device=CPU).valid_TN.dtype == torch.bool


@pytest.mark.parametrize("name", sorted(TENSORS))
def test_a_segment_without_a_tensor_is_refused_by_its_name(name: str) -> None:
    segment = random_segment(0, num_steps=5, num_envs=3)
    del segment[name]
    with pytest.raises(RecordError, match=name):
        check(segment)


@pytest.mark.parametrize("name", sorted(TENSORS))
def test_a_truncated_tensor_is_refused_by_its_name(name: str) -> None:
    segment = random_segment(0, num_steps=5, num_envs=3)
    segment[name] = segment[name][:, :-1]
    # Cutting the logprobs says that the segment is narrower, and then the first of the others is the wrong one.
    with pytest.raises(RecordError, match="observations" if name == "behavior_logprobs" else name):
        check(segment)


@pytest.mark.parametrize("name", sorted(TENSORS))
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
    assert batch.observations["observations"].shape == (5, 5, OBSERVATION_SIZE)
    np.testing.assert_array_equal(batch.rewards_TN[:, 2:].numpy(), segments[1]["rewards"])
    assert batch.num_steps() == sum(int(segment["valid"].sum()) for segment in segments)


def test_segments_of_different_lengths_make_no_batch() -> None:
    segments = [random_segment(0, num_steps=steps, num_envs=2) for steps in (4, 5)]
    with pytest.raises(RecordError, match="one length"):
        stack_segments(segments, device=CPU)
    with pytest.raises(RecordError, match="one length"):
        stack_segments([], device=CPU)


def test_every_part_of_an_observation_is_checked_and_stacked_by_its_name() -> None:
    expected = segment_tensors(MIXED)
    recorded = [name.replace(PICTURE, f"starts.{PICTURE}") for name in test_inputs.SEEN]
    assert list(expected)[: len(recorded)] == recorded
    segment = mixed_segment()
    assert check_segment(segment, expected, name="t") == (4, 2)
    batch = stack_segments([segment, segment], device=CPU)
    assert batch.observations.keys() == test_inputs.SEEN.keys()
    for name in test_inputs.SEEN.keys() - {PICTURE}:
        tensor = batch.observations[name]
        assert tensor.shape == (5, 4, *test_inputs.SEEN[name].shape[1:])
        assert str(tensor.dtype) == f"torch.{test_inputs.SEEN[name].dtype}"
    assert batch.actions_TN.dtype == torch.int64


def test_frames_of_stacked_segments_are_found_by_their_positions() -> None:
    leaf = BoxSpace((3, 8, 8), "uint8", (0.0,), (255.0,))
    rng = np.random.default_rng(0)
    segments: list[dict[str, Array]] = []
    images: list[Array] = []
    for num_envs in (2, 1):
        recorder = FrameRecorder(leaf, num_steps=4, num_envs=num_envs)
        shown = np.zeros((5, num_envs, 3, 8, 8), np.uint8)
        for step in range(5):
            shown[step, :, :-1] = shown[step - 1, :, 1:]
            shown[step, :, -1] = rng.integers(0, 256, (num_envs, 8, 8))
            recorder.append(shown[step])
        segment = random_segment(0, num_steps=4, num_envs=num_envs)
        del segment["observations"]
        segments.append(segment | recorder.tensors("observations"))
        images.append(shown)
    batch = stack_segments(segments, device=CPU)
    assert batch.frames["observations"].shape == (3 * (5 + 2), 8, 8)
    positions_SN = batch.observations["observations"]
    stacked = observed(batch.frames["observations"], positions_SN[:, [2, 0]], leaf, torch)
    np.testing.assert_array_equal(stacked[:, 0].numpy(), images[1][:, 0])
    np.testing.assert_array_equal(stacked[:, 1].numpy(), images[0][:, 0])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("observations.room", 3),
        ("observations.room", -1),
        ("observations.pair.0", 2),  # the second component has a third value, the first has none
        ("actions", 2),
        ("actions", -1),
    ],
)
def test_an_index_that_its_space_does_not_have_is_refused(name: str, wrong: int) -> None:
    segment = mixed_segment()
    flat = segment[name] = segment[name].copy()
    flat[1, 1] = np.array([wrong, 0]) if flat.ndim == 3 and name != "actions" else wrong
    with pytest.raises(RecordError, match=name):
        check_segment(segment, segment_tensors(MIXED), name="t")


@pytest.mark.parametrize(
    "space",
    [
        DiscreteSpace(5, start=2),
        CHOICES,
        MultiBinarySpace((2, 3)),
        BoxSpace((2, 2), "float64", (-1.0,), (1.0,)),
        BoxSpace((), "float32", (-1.0,), (1.0,)),
    ],
)
def test_actions_are_recorded_as_their_distribution_samples_them(space: Space) -> None:
    found = segment_tensors(EnvironmentDescription("Made-v0", DiscreteSpace(2), space))["actions"]
    distribution = action_distribution(space)
    assert found.shape == distribution.action_shape
    assert found.dtypes == (distribution.action_dtype,)


def test_continuous_actions_stay_floats() -> None:
    segment = random_segment(0, num_steps=3, num_envs=2)
    segment["actions"] = np.full((3, 2, 1), 0.5, np.float32)
    assert stack_segments([segment], device=CPU).actions_TN.dtype == torch.float32


def test_actions_of_several_parts_are_refused() -> None:
    with pytest.raises(ConfigError, match="several parts"):
        segment_tensors(EnvironmentDescription("Made-v0", DiscreteSpace(2), DictSpace({"a": CHOICES})))
