"""Shapes: T steps, N environments, S = T + 1 observations, F frames a stack, H × W pixels."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.typing import NDArray

from tidegate.algorithms.frame_stacks import FRAMES, STARTS, FrameRecorder, observed, stack_size, with_frames
from tidegate.core.errors import RecordError
from tidegate.core.records import Array
from tidegate.core.spaces import BoxSpace, DiscreteSpace

NAME = "observations"


def images(*shape: int, dtype: str = "uint8") -> BoxSpace:
    return BoxSpace(shape, dtype, (0.0,), (255.0,))


def record(observations_SN: NDArray[np.uint8], leaf: BoxSpace) -> dict[str, Array]:
    recorder = FrameRecorder(leaf, num_steps=len(observations_SN) - 1, num_envs=observations_SN.shape[1])
    for observations_N in observations_SN:
        recorder.append(observations_N)
    return recorder.tensors(NAME)


def recorded_frames(tensors: dict[str, Array], leaf: BoxSpace) -> tuple[Array, Array]:
    checked = with_frames(tensors, {NAME: leaf}, name="Trajectory t")
    return checked[f"{FRAMES}{NAME}"], checked[f"{STARTS}{NAME}"]


def restore(tensors: dict[str, Array], leaf: BoxSpace) -> Array:
    frames, starts = recorded_frames(tensors, leaf)
    return observed(frames, starts, leaf, np)


def stacked_play(
    rng: np.random.Generator, *, shape: tuple[int, int, int, int], size: int, resets: float, padding: str
) -> NDArray[np.uint8]:
    """What a frame-stacking wrapper shows: the slow twin keeps each environment's stack as a list."""
    num_rows, num_envs, height, width = shape
    observations: list[list[NDArray[np.uint8]]] = []
    stacks: list[list[NDArray[np.uint8]]] = [[] for _ in range(num_envs)]
    for _ in range(num_rows):
        for env in range(num_envs):
            frame = rng.integers(0, 3, (height, width), dtype=np.uint8)
            if not stacks[env] or rng.random() < resets:
                filling = np.zeros_like(frame) if padding == "zero" else frame
                stacks[env] = [filling] * (size - 1) + [frame]
            else:
                stacks[env] = [*stacks[env][1:], frame]
        observations.append([np.stack(stack) for stack in stacks])
    return np.array(observations)


@given(
    seed=st.integers(0, 2**31),
    num_rows=st.integers(1, 30),
    num_envs=st.integers(1, 4),
    size=st.integers(2, 5),
    side=st.sampled_from([6, 8, 9]),
    resets=st.sampled_from([0.0, 0.1, 0.9]),
    padding=st.sampled_from(["zero", "reset"]),
)
def test_stacked_frames_come_back_exactly(
    seed: int, num_rows: int, num_envs: int, size: int, side: int, resets: float, padding: str
) -> None:
    rng = np.random.default_rng(seed)
    shape = (num_rows, num_envs, side, side)
    observations = stacked_play(rng, shape=shape, size=size, resets=resets, padding=padding)
    leaf = images(size, side, side)
    assert stack_size(leaf) == size
    np.testing.assert_array_equal(restore(record(observations, leaf), leaf), observations)


@given(seed=st.integers(0, 2**31), num_rows=st.integers(1, 8), values=st.sampled_from([1, 2, 256]))
@pytest.mark.parametrize("shape", [(4, 8, 8), (8, 8), (8, 8, 3), (2, 8, 8, 3), (3, 9, 9), (20, 20, 20)])
def test_any_images_come_back_exactly(shape: tuple[int, ...], seed: int, num_rows: int, values: int) -> None:
    rng = np.random.default_rng(seed)
    observations = rng.integers(0, values, (num_rows, 2, *shape)).astype(np.uint8)
    leaf = images(*shape)
    np.testing.assert_array_equal(restore(record(observations, leaf), leaf), observations)


def test_each_frame_of_an_episode_is_stored_once() -> None:
    observations = stacked_play(
        np.random.default_rng(0), shape=(65, 16, 8, 8), size=4, resets=0.0, padding="zero"
    )
    tensors = record(observations, images(4, 8, 8))
    assert tensors["frames.observations"].shape == (16 * (64 + 4), 8, 8)
    assert tensors["starts.observations"].dtype == np.int32


def test_frames_of_one_environment_lie_together_in_order() -> None:
    rng = np.random.default_rng(0)
    observations = stacked_play(rng, shape=(9, 3, 8, 8), size=4, resets=0.0, padding="reset")
    frames = record(observations, images(4, 8, 8))["frames.observations"].reshape(3, 12, 8, 8)
    np.testing.assert_array_equal(frames[:, 3:], observations[:, :, -1].swapaxes(0, 1))


def test_recorder_does_not_trust_an_environment_that_reuses_its_memory() -> None:
    leaf = images(2, 8, 8)
    recorder = FrameRecorder(leaf, num_steps=2, num_envs=1)
    memory = np.zeros((1, 2, 8, 8), np.uint8)
    seen: list[NDArray[np.uint8]] = []
    for value in (1, 2, 2):
        memory[:] = value
        recorder.append(memory)
        seen.append(memory.copy())
    np.testing.assert_array_equal(restore(recorder.tensors(NAME), leaf), np.stack(seen))


def test_images_recorded_in_full_are_read_as_frames() -> None:
    leaf = images(4, 8, 8)
    observations = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 8, 8), dtype=np.uint8)
    frames, starts = recorded_frames({NAME: observations}, leaf)
    assert np.shares_memory(frames, observations)
    np.testing.assert_array_equal(observed(frames, starts, leaf, np), observations)


def test_other_tensors_of_a_segment_stay_as_they_are() -> None:
    leaves = {"observations.camera": images(8, 8), "observations.gear": DiscreteSpace(3)}
    tensors: dict[str, Array] = {
        "observations.camera": np.zeros((3, 2, 8, 8), np.uint8),
        "observations.gear": np.zeros((3, 2), np.int32),
        "rewards": np.zeros((2, 2), np.float32),
    }
    checked = with_frames(tensors, leaves, name="Trajectory t")
    assert set(checked) == {
        "frames.observations.camera",
        "starts.observations.camera",
        "observations.gear",
        "rewards",
    }


def test_torch_and_numpy_stack_alike() -> None:
    leaf = images(4, 8, 8)
    rng = np.random.default_rng(0)
    observations = stacked_play(rng, shape=(9, 3, 8, 8), size=4, resets=0.2, padding="zero")
    frames, starts = recorded_frames(record(observations, leaf), leaf)
    rows = torch.tensor(starts.reshape(-1)[[20, 3, 3]])
    stacked = observed(torch.tensor(frames), rows, leaf, torch)
    np.testing.assert_array_equal(stacked.numpy(), observations.reshape(-1, 4, 8, 8)[[20, 3, 3]])


@pytest.mark.parametrize(
    ("leaf", "size"),
    [
        (images(4, 84, 84), 4),
        (images(4, 84, 84, 3), 4),
        (images(84, 84), 1),
        (images(84, 84, 3), 1),
        (images(17, 84, 84), 1),
        (images(4, 84, 84, dtype="float32"), 0),
        (images(4), 0),
        (DiscreteSpace(3), 0),
    ],
)
def test_stack_is_a_short_leading_dimension_of_an_image(leaf: Any, size: int) -> None:
    assert stack_size(leaf) == size


STARTS_SN = np.zeros((3, 2), np.int32)
STACK = np.zeros((6, 8, 8), np.uint8)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "neither as frames"),
        ({"frames.observations": STACK}, "neither as frames"),
        ({"starts.observations": STARTS_SN}, "neither as frames"),
        (
            {
                "frames.observations": STACK,
                "starts.observations": STARTS_SN,
                NAME: np.zeros((3, 2, 4, 8, 8), np.uint8),
            },
            "neither as frames",
        ),
        ({"frames.observations": STACK, "starts.observations": STARTS_SN.astype(np.int64)}, "type int64"),
        ({"frames.observations": STACK, "starts.observations": STARTS_SN[0]}, "starts of shape"),
        ({"frames.observations": STACK, "starts.observations": STARTS_SN - 1}, "stacks from -1 to -1"),
        ({"frames.observations": STACK, "starts.observations": STARTS_SN + 3}, "stacks from 3 to 3"),
        ({"frames.observations": STACK[:3], "starts.observations": STARTS_SN}, "stacks from 0 to 0"),
        (
            {"frames.observations": STACK[:, :7], "starts.observations": STARTS_SN},
            r"frames of shape \(7, 8\)",
        ),
        ({"frames.observations": STACK.astype(np.int16), "starts.observations": STARTS_SN}, "type int16"),
        ({NAME: np.zeros((3, 2, 4, 8, 8), np.float32)}, "type float32"),
        ({NAME: np.zeros((3, 2, 4, 8, 7), np.uint8)}, "of shape"),
    ],
)
def test_images_of_another_layout_are_refused(tensors: dict[str, Array], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        recorded_frames(tensors, images(4, 8, 8))
