"""Opening environments as a run file configures them, and refusing what cannot work in one sentence."""

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.unit.vector_envs.envs import MODULE
from tidegate.core.errors import ConfigError, NotFoundError, TidegateError
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.environment_settings import DtypeObservation, FlattenObservation, ReshapeObservation
from tidegate.vector_envs.guarded import GuardedCopies, GuardedForm
from tidegate.vector_envs.opening import open_vector_env


def workload(env: str, **settings: Any) -> WorkloadConfig:
    return WorkloadConfig(kind="segments", env=env, **settings)


def own(name: str, **settings: Any) -> WorkloadConfig:
    return workload(f"{MODULE}:{name}-v0", **settings)


def test_an_environment_with_a_vector_form_is_opened_in_it() -> None:
    envs = open_vector_env(workload("CartPole-v1"), num_envs=3, checked=True)
    assert type(envs).__name__ == "CartPoleVectorEnv"
    assert envs.num_envs == 3
    envs.close()


@pytest.mark.parametrize(("env", "guarded"), [("CartPole-v1", GuardedForm), ("FrozenLake-v1", GuardedCopies)])
def test_environments_are_behind_a_guard_below_their_wrappers(env: str, guarded: type[object]) -> None:
    envs = open_vector_env(
        workload(env, wrappers=(DtypeObservation(dtype="float64"),)), num_envs=2, checked=False
    )
    assert type(envs) is not guarded
    assert type(envs.unwrapped) is guarded
    envs.close()


@pytest.mark.parametrize("env", ["CartPole-v1", "FrozenLake-v1", f"{MODULE}:Configurable-v0"])
def test_every_form_resets_by_next_step(env: str) -> None:
    envs = open_vector_env(workload(env), num_envs=2)
    assert envs.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.NEXT_STEP
    envs.close()


def test_a_vector_form_that_resets_in_the_same_step_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"resets by SameStep.*NEXT_STEP"):
        open_vector_env(own("ResetsInTheSameStep"), num_envs=2)


def test_arguments_reach_the_constructor() -> None:
    envs = open_vector_env(own("Numbers", env_kwargs={"length": 1}), num_envs=2)
    envs.reset(seed=0)
    assert envs.step(np.zeros(2, np.int64))[2].tolist() == [True, True]
    envs.close()


def test_the_step_limit_can_be_replaced() -> None:
    envs = open_vector_env(own("Limited", env_kwargs={"length": 99, "max_episode_steps": 2}), num_envs=1)
    envs.reset(seed=0)
    assert [bool(envs.step(np.zeros(1, np.int64))[3][0]) for _ in range(2)] == [False, True]
    envs.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            workload("FrozenLake-v1", env_kwargs={"is_slipery": False}),
            "has no argument 'is_slipery'.*is_slippery",
        ),
        (workload("CartPole-v1", env_kwargs={"gravity": 1.0}), "has no argument 'gravity'. it takes"),
        (workload("CartPole-v1", env_kwargs={"render_mode": "human"}), "render_mode cannot be set"),
        (
            workload("FrozenLake-v1", env_kwargs={"map_name": "9x9"}),
            "'FrozenLake-v1' fails when it is made. KeyError: '9x9'",
        ),
        (own("BreaksWhenMade"), r"fails when it is made. RuntimeError: no licence at .*envs.py:\d+"),
    ],
)
def test_arguments_and_constructors_that_fail_are_refused(settings: WorkloadConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_vector_env(settings, num_envs=1)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("CartPol-v1", "There is no environment 'CartPol-v1'. set workload.env to CartPole-v1"),
        ("CartPole-v7", "version `v7` for environment `CartPole` doesn't exist"),
        ("MountainCar", "set workload.env to MountainCar-v0"),
        (
            f"{MODULE}:Number-v0",
            f"registers no environment 'Number-v0'. set workload.env to {MODULE}:Numbers-v0",
        ),
        (
            "no_such_module:MyEnv-v0",
            "names the module no_such_module, .*start the run where no_such_module.py is",
        ),
        (f"{MODULE}:NeedsPackage-v0", "needs the package no-such-engine, .*pip install no-such-engine"),
    ],
)
def test_an_environment_that_there_is_not_is_named_with_what_helps(env: str, message: str) -> None:
    with pytest.raises(NotFoundError, match=message):
        open_vector_env(workload(env), num_envs=1)


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)
    monkeypatch.delitem(sys.modules, "gymnasium.envs.box2d", raising=False)
    with pytest.raises(NotFoundError, match=r"needs the package box2d, .*pip install box2d pygame"):
        open_vector_env(workload("LunarLander-v3"), num_envs=1)


def test_a_module_is_found_in_the_folder_where_the_run_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_of_the_test.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('Mine-v0', entry_point=CartPoleEnv)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    open_vector_env(workload("mine_of_the_test:Mine-v0"), num_envs=1).close()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_thing\n", "needs the package no-such-thing, which is not installed"),
        ("def broken(:\n", r"fails while broken_\d is imported. SyntaxError: .* at broken_\d.py:1"),
        ("\nraise ValueError('bad map')\n", r"ValueError: bad map at broken_\d.py:2"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused_with_its_line(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken_{len(source) % 10}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(TidegateError, match=message):
        open_vector_env(workload(f"{name}:Mine-v0"), num_envs=1)


def test_wrappers_and_stacked_frames_are_applied_in_order() -> None:
    settings = own("Image", wrappers=(FlattenObservation(), ReshapeObservation(shape=(5, 6))), frame_stack=2)
    envs = open_vector_env(settings, num_envs=3)
    assert envs.single_observation_space.shape == (2, 5, 6)
    observations, _ = envs.reset(seed=0)
    assert observations.shape == (3, 2, 5, 6)
    envs.close()
