"""Stacked frames against a slow twin that keeps the frames of each environment by itself."""

from collections import deque

import numpy as np
import pytest

from tests.unit.vector_envs.test_opening import own
from tidegate.core.errors import ConfigError
from tidegate.core.records import Array
from tidegate.vector_envs.opening import open_vector_env

NUM_FRAMES = 3


def twin(frames: deque[Array], *, axis: int | None) -> Array:
    return np.stack(frames) if axis is None else np.concatenate(frames, axis=axis)


@pytest.mark.parametrize(
    ("env", "axis", "shape"),
    [
        ("Numbers", None, (3, 2)),
        ("Image", None, (3, 6, 5)),
        ("ChannelsFirst", 0, (9, 6, 5)),
        ("ChannelsLast", None, (3, 6, 5, 3)),
    ],
)
def test_frames_are_stacked_within_an_episode_and_zeros_before_it(
    env: str, axis: int | None, shape: tuple[int, ...]
) -> None:
    plain = open_vector_env(own(env), num_envs=2)
    stacked = open_vector_env(own(env, frame_stack=NUM_FRAMES), num_envs=2)
    assert stacked.single_observation_space.shape == shape
    singles, _ = plain.reset(seed=0)
    observations, _ = stacked.reset(seed=0)
    zeros = [np.zeros_like(singles[0])] * NUM_FRAMES
    kept = [deque(zeros, NUM_FRAMES) for _ in range(2)]
    ended_N, ends_N = np.zeros((2, 2), np.bool_)
    for _ in range(12):
        for index, frames in enumerate(kept):
            if ended_N[index]:  # NEXT_STEP: the row after an end begins the next episode
                frames.extend(zeros)
            frames.append(singles[index])
            np.testing.assert_array_equal(observations[index], twin(frames, axis=axis))
        assert stacked.observation_space.contains(observations)
        ended_N = ends_N
        actions = np.zeros(2, np.int64)
        singles, _, terminated, truncated, _ = plain.step(actions)
        ends_N = terminated | truncated
        observations, *_ = stacked.step(actions)
    plain.close()
    stacked.close()


@pytest.mark.parametrize("env", ["Index", "Parts", "Volume"])
def test_observations_that_cannot_be_stacked_are_refused(env: str) -> None:
    with pytest.raises(ConfigError, match="frame_stack does not fit"):
        open_vector_env(own(env, frame_stack=2), num_envs=1)
