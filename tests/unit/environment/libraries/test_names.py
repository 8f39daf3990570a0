"""Names of other libraries' environments in a run file, and what is refused before a start."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.test_run_file import TEXT
from tidegate.core.errors import ConfigError
from tidegate.environment.libraries.names import is_openenv, is_verifiers, library_task_of
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_parsing import parse_plan
from tidegate.runtime.config import WorkloadConfig

EXAMPLES = [Path(__file__).parents[4] / "examples" / name for name in ("openenv", "verifiers")]
SERVER = "openenv:http://127.0.0.1:8000"


def refusal(env: str, *, actor: dict[str, Any] | None = None, score_s: float = 30.0, **workload: Any) -> str:
    raw = {
        **TEXT,
        "workload": {**TEXT["workload"], "env": env, **workload},
        "actor": {"engine": "torch", **(actor or {})},
        "environment": {"score_deadline_s": score_s},
    }
    with pytest.raises(ConfigError) as raised:
        parse_plan(raw, source="test")
    return str(raised.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"turns_max": 1}, "turns_max is 1"),
        ({"turns_max": 4, "score_s": 10.0}, "set environment.score_deadline_s to 20"),
        ({"turns_max": 4, "env_kwargs": {"sedes": 9}}, "unknown field `sedes`"),
        ({"turns_max": 4, "env_kwargs": {"seeds": 9}}, ">= 10"),
        ({"turns_max": 4, "env_kwargs": {"pattern": "(a"}}, "is no regular expression"),
        ({"turns_max": 4, "env_kwargs": {"pattern": "(a)(b)"}}, "has 2 groups"),
        ({"turns_max": 4, "env_kwargs": {"servers": ["host:80"]}}, "no address of an OpenEnv server"),
        ({"turns_max": 4, "actor": {"gateway": {"port": 1}}}, "remove actor.gateway"),
    ],
)
def test_a_server_is_refused_with_settings_that_cannot_work(settings: dict[str, Any], said: str) -> None:
    assert said in refusal(SERVER, **settings)


@pytest.mark.parametrize(
    ("actor", "said"),
    [
        ({}, "set actor.gateway: {workers: 1,"),
        ({"gateway": {"workers": 1, "reward": "environment"}}, "remove actor.gateway.reward"),
    ],
)
def test_an_environment_of_verifiers_is_played_by_a_worker_of_the_gateway(
    actor: dict[str, Any], said: str
) -> None:
    assert said in refusal("verifiers:some-env", actor=actor)


def test_workers_of_a_task_without_a_library_need_a_command() -> None:
    assert "set actor.gateway.command" in refusal("arithmetic", actor={"gateway": {"workers": 1}})


def test_another_address_is_none_of_a_server() -> None:
    assert "write workload.env as openenv:http://host:port" in refusal("openenv:localhost:80", turns_max=2)


def test_a_task_of_this_package_takes_no_arguments() -> None:
    assert "env_kwargs is set with workload.env arithmetic" in refusal("arithmetic", env_kwargs={"size": 4})


def test_a_name_of_another_form_is_left_to_others() -> None:
    assert library_task_of(WorkloadConfig(kind="text", env="my_task.py:Mine"), folder="") is None


@pytest.mark.parametrize(
    "path", sorted(path for folder in EXAMPLES for path in folder.glob("*.yaml")), ids=lambda path: path.name
)
def test_example_is_a_run_of_a_library(path: Path) -> None:
    workload = read_run_file(path, []).file.workload
    assert is_openenv(workload.env) or is_verifiers(workload.env)
