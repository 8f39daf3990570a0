"""Plays a policy in one copy of its environment, and shows each step to a camera."""

import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tidegate.core.errors import ConfigError, TidegateError
from tidegate.core.records import Array
from tidegate.core.spaces import is_image
from tidegate.launch.stored_policy import StoredPolicy
from tidegate.models.policy_port import SegmentPolicy
from tidegate.runtime.loading import load
from tidegate.vector_envs.episodes import PlayedEpisode, play_episodes
from tidegate.vector_envs.failures import failure_of
from tidegate.vector_envs.opening import RENDER_MODE, can_draw, find_spec, open_vector_env

FPS_DEFAULT = 30.0
# An image whose last dimension is so small has its channels there.
CHANNELS_MAX = 4
# Observations are drawn at least this high, in whole multiples of their pixels.
HEIGHT_MIN = 320


class Camera(Protocol):
    """Takes the pictures of the steps, (height, width, 3) of uint8."""

    def add(self, picture: NDArray[np.uint8]) -> None:
        """One picture; all have the same size."""
        ...


def play(
    stored: StoredPolicy,
    *,
    num_episodes: int,
    seed: int,
    steps_max: int,
    open_camera: Callable[[float], Camera] | None = None,
) -> list[PlayedEpisode]:
    """Whole greedy episodes, one after the other; ``open_camera`` is called with the pictures a second.

    Raises:
        ConfigError: the run has no segments, the environment is another one than the policy's, or it shows nothing.
        NotFoundError: the environment, or a package that it needs, is not installed.
    """
    workload = stored.file.workload
    if workload.kind != "segments":
        raise ConfigError(
            "Only policies of segments are played",
            why="this run's policy writes text",
            fix="name another run",
        )
    policy = stored.policy()
    # Pictures are drawn in memory; without this SDL, by which most environments draw, looks for a screen.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    envs = open_vector_env(workload, num_envs=1, draws=open_camera is not None)
    try:
        load("tidegate.vector_envs.spaces:check_described")(envs, policy.description)
        look = _no_look
        if open_camera is not None:
            draw = _drawer(workload.env, envs, policy)
            look = _look(draw, open_camera(float(envs.metadata.get("render_fps") or FPS_DEFAULT)))
        return play_episodes(
            envs,
            policy,
            stored.tensors,
            num_episodes=num_episodes,
            seed=seed,
            steps_max=steps_max,
            before_step=look,
        )
    finally:
        envs.close()


def _no_look(_running_N: object, _observations: object) -> None:
    """Without a camera."""


def _look(
    draw: Callable[[Mapping[str, Array]], NDArray[np.uint8]], camera: Camera
) -> Callable[[object, Mapping[str, Array]], None]:
    return lambda _running_N, observations: camera.add(draw(observations))


def _drawer(
    env_id: str, envs: Any, policy: SegmentPolicy
) -> Callable[[Mapping[str, Array]], NDArray[np.uint8]]:
    """What makes a picture of a step: the environment, or the images that it observes.

    Raises:
        ConfigError: it can do neither.
    """
    if can_draw(find_spec(env_id)) and RENDER_MODE in envs.metadata.get("render_modes", ()):
        return lambda _observations: _rendered(env_id, envs)
    images = [name for name, leaf in policy.observations.items() if is_image(leaf)]
    if not images:
        raise ConfigError(
            f"Environment {env_id!r} draws no pictures",
            why=f"it has no render_mode {RENDER_MODE}, and observes no images",
            fix="play without --video",
        )
    return lambda observations: picture_of(observations[images[0]][0])


def _rendered(env_id: str, envs: Any) -> NDArray[np.uint8]:
    try:
        picture = (envs.render() or (None,))[0]
    except TidegateError:
        raise
    except Exception as error:  # an environment is third-party code
        raise failure_of(env_id, "when it draws itself", error, fix="play without --video") from error
    if picture is None:
        raise ConfigError(f"Environment {env_id!r} returns no picture", fix="play without --video")
    return np.asarray(picture, np.uint8)


def picture_of(observation: Array) -> NDArray[np.uint8]:
    """The newest frame of an observed image (uint8, in any layout that policies read) as a picture in colour."""
    frame = observation[-1] if observation.ndim == 4 else observation
    if frame.ndim == 3 and not frame.shape[2] <= CHANNELS_MAX < frame.shape[0]:
        # Frames or channels in front: three are taken for colours, else the last is the newest.
        frame = np.moveaxis(frame, 0, 2) if frame.shape[0] == 3 else frame[-1]
    if frame.ndim == 2 or frame.shape[2] != 3:
        grey = frame if frame.ndim == 2 else frame[..., -1]
        frame = np.repeat(grey[..., None], 3, axis=2)
    scale = max(1, -(-HEIGHT_MIN // frame.shape[0]))
    return frame.repeat(scale, axis=0).repeat(scale, axis=1)
