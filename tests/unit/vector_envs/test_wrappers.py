"""The table of wrappers: complete, each works where it fits, and is refused where it does not."""

import importlib.util
from typing import get_args

import pytest

from tests.unit.vector_envs.test_opening import own, workload
from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.runtime import environment_settings as settings
from tidegate.runtime.config import WorkloadConfig
from tidegate.vector_envs.opening import open_vector_env
from tidegate.vector_envs.wrappers import WRAPPERS


def test_every_setting_has_its_wrapper_of_the_same_name() -> None:
    kinds = get_args(settings.WrapperSettings)
    assert set(WRAPPERS) == set(kinds)
    assert [wrapper.__name__ for wrapper in WRAPPERS.values()] == [kind.__name__ for kind in WRAPPERS]


@pytest.mark.parametrize(
    ("env", "wrapper", "shape"),
    [
        ("Parts", settings.FlattenObservation(), (5,)),
        ("ChannelsLast", settings.GrayscaleObservation(), (6, 5)),
        ("ChannelsLast", settings.GrayscaleObservation(keep_dim=True), (6, 5, 1)),
        ("Image", settings.ReshapeObservation(shape=(30,)), (30,)),
        ("Numbers", settings.RescaleObservation(min_obs=-1.0, max_obs=1.0), (2,)),
        ("Image", settings.DtypeObservation(dtype="float32"), (6, 5)),
    ],
)
def test_a_wrapper_changes_the_observations_and_their_space(
    env: str, wrapper: settings.WrapperSettings, shape: tuple[int, ...]
) -> None:
    envs = open_vector_env(own(env, wrappers=(wrapper,)), num_envs=2)
    observations, _ = envs.reset(seed=0)
    assert envs.single_observation_space.shape == shape
    assert observations.shape == (2, *shape)
    assert observations.dtype == envs.single_observation_space.dtype
    assert envs.observation_space.contains(observations)
    envs.close()


def test_a_filter_keeps_the_named_parts() -> None:
    envs = open_vector_env(
        own("Words", wrappers=(settings.FilterObservation(filter_keys=("where",)),)), num_envs=2
    )
    observations, _ = envs.reset(seed=0)
    assert list(observations) == ["where"]
    envs.close()


def test_actions_are_rescaled_to_the_bounds_of_the_environment() -> None:
    envs = open_vector_env(
        workload("Pendulum-v1", wrappers=(settings.RescaleAction(min_action=-1.0, max_action=1.0),)),
        num_envs=1,
    )
    assert envs.single_action_space.high.tolist() == [1.0]
    envs.close()


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (
            own("Numbers", wrappers=(settings.GrayscaleObservation(),)),
            r"wrappers.0: GrayscaleObservation does not",
        ),
        (
            own("Image", wrappers=(settings.ReshapeObservation(shape=(31,)),)),
            "ReshapeObservation does not fit",
        ),
        (
            own("Words", wrappers=(settings.FilterObservation(filter_keys=("who",)),)),
            "FilterObservation does not",
        ),
        (
            own("Index", wrappers=(settings.RescaleObservation(min_obs=0.0, max_obs=1.0),)),
            "they are Discrete",
        ),
        (
            own("Numbers", wrappers=(settings.FlattenObservation(), settings.ClipAction())),
            r"wrappers.1: ClipAction does not fit the environment's actions. they are Discrete\(2\) there",
        ),
    ],
)
def test_a_wrapper_that_does_not_fit_is_refused_with_the_space_it_finds(
    workload: WorkloadConfig, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_vector_env(workload, num_envs=1)


@pytest.mark.skipif(importlib.util.find_spec("cv2") is not None, reason="OpenCV is installed")
def test_a_wrapper_whose_library_is_missing_names_the_command_that_installs_it() -> None:
    resized = own("Image", wrappers=(settings.ResizeObservation(shape=(3, 3)),))
    with pytest.raises(NotFoundError, match="pip install opencv-python-headless"):
        open_vector_env(resized, num_envs=1)
