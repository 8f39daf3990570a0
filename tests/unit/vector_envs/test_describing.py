"""The description of an environment, and the refusal of one whose code fails when it is tried out."""

import sys
from pathlib import Path

import pytest

from tests.unit.vector_envs.envs import MODULE
from tests.unit.vector_envs.test_opening import own, workload
from tidegate.core.errors import ConfigError, NotFoundError
from tidegate.core.spaces import BoxSpace, DictSpace, DiscreteSpace
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.environment_settings import FilterObservation
from tidegate.vector_envs.describing import describe


def test_an_environment_is_described_with_its_limit_its_form_and_its_rate() -> None:
    description = describe(workload("CartPole-v1"))
    assert description.env_id == "CartPole-v1"
    assert isinstance(description.observation_space, BoxSpace)
    assert description.observation_space.shape == (4,)
    assert description.action_space == DiscreteSpace(2)
    assert description.max_episode_steps == 500
    assert description.is_vectorised
    assert description.steps_per_cpu_s > 0.0


def test_an_environment_of_ones_own_is_described() -> None:
    description = describe(own("Parts"))
    assert description.env_id == f"{MODULE}:Parts-v0"
    assert isinstance(description.observation_space, DictSpace)
    assert list(description.observation_space.spaces) == ["where", "which"]
    assert description.max_episode_steps == 0
    assert not description.is_vectorised


@pytest.mark.parametrize(("limit", "described"), [(4, 4), (-1, 0)])
def test_the_limit_is_the_one_that_the_run_file_sets(limit: int, described: int) -> None:
    assert describe(own("Limited")).max_episode_steps == 7
    changed = own("Limited", env_kwargs={"max_episode_steps": limit})
    assert describe(changed).max_episode_steps == described


def test_the_description_is_of_the_wrapped_and_stacked_observations() -> None:
    description = describe(own("Image", frame_stack=4))
    assert description.observation_space == BoxSpace((4, 6, 5), "uint8", (0.0,), (255.0,))
    filtered = describe(own("Words", wrappers=(FilterObservation(filter_keys=("where",)),)))
    assert filtered.observation_space == DictSpace({"where": BoxSpace((2,), "float32", (0.0,), (255.0,))})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (own("Words"), r"the space of its observations.what is Text\("),
        (own("BreaksInReset"), r"fails in reset. OSError: the level file is missing at .*envs.py:\d+"),
        (own("BreaksInStep"), r"fails in a step. KeyError: 'position' at .*envs.py:\d+"),
        (own("ForgetsInfo"), "ForgetsInfo.reset returns a ndarray. .*an observation and a dictionary"),
        (own("OldStep"), "OldStep.step returns a tuple of 4. .*terminated, truncated"),
        (
            own("WrongShape"),
            r"WrongShape.reset returns an observation of shape \(3,\). its observation_space is Box",
        ),
        (own("OutOfRange"), "its first observation is 4. its space declares 0 to 3"),
    ],
)
def test_an_environment_that_fails_when_it_is_tried_out_is_refused(
    settings: WorkloadConfig, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        describe(settings)


BROKEN = """
import gymnasium

class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        raise OSError("the level file is missing")

gymnasium.register("Broken-v0", Broken)
"""


@pytest.mark.parametrize("folder", ["tidegate", "gymnasium", "numpy"])
def test_the_line_that_failed_is_named_in_a_folder_with_the_name_of_a_library(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / f"broken_in_{folder}.py").write_text(BROKEN, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path / folder), *sys.path])
    with pytest.raises(ConfigError, match=rf"level file is missing at .*{folder}/broken_in_{folder}.py:9"):
        describe(workload(f"broken_in_{folder}:Broken-v0"))


def test_an_unknown_environment_is_refused() -> None:
    with pytest.raises(NotFoundError, match="There is no environment"):
        describe(workload("NoSuchGame-v0"))
