import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.run_folder import CARTPOLE, write_run
from tidegate.cli.app import print_error, run
from tidegate.cli.registry import COMMANDS
from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.launch import serve
from tidegate.launch.services import SERVICES, config_type, instances, load


@pytest.mark.parametrize("name", COMMANDS)
def test_command_of_the_registry_exists_and_explains_itself(name: str) -> None:
    function = load(COMMANDS[name].target)
    assert callable(function)
    assert function.__doc__


@pytest.mark.parametrize("name", SERVICES)
def test_service_of_the_registry_builds_what_its_config_says(name: str) -> None:
    spec = load(f"{SERVICES[name].package}.main:SPEC")
    assert spec.name == name
    assert spec.config_type is config_type(name)
    assert config_type(name)()


def test_only_replicated_services_are_numbered() -> None:
    assert instances("actor", replicas=2) == ["actor-0", "actor-1"]
    assert instances("learner", replicas=1) == ["learner"]


def test_actors_drain_first_and_the_owners_of_journal_and_ledger_after_the_learner() -> None:
    order = sorted(SERVICES, key=lambda name: SERVICES[name].stop_order)
    assert order[0] == "actor"
    assert order.index("learner") < order.index("trajectory_store") < order.index("task_queue")


@pytest.mark.parametrize(
    "arguments",
    [
        ["up", str(CARTPOLE), "--set", "staleness.max_lagg=1"],
        ["up", "nowhere.yaml"],
        ["up", str(CARTPOLE), "--until", "fame"],
        ["up", str(CARTPOLE), "--for", "soon"],
        ["up", str(CARTPOLE), "--until", "solved_share>=0.5"],
        ["audit", "--dir", "nowhere"],
        ["trace", "t0000000001.0", "--dir", "nowhere"],
        ["explain", "--dir", "nowhere"],
        ["status", "--dir", "nowhere"],
        ["report", "--dir", "nowhere"],
    ],
)
def test_mistake_ends_as_one_line_and_exit_code_two(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("tidegate: ")
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["upp"], ["up"], ["up", "--unknown"], ["trace"], ["status", "--json=maybe"]]
)
def test_usage_error_is_no_traceback(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["audit", "--dir", "a" * 300], "File name too long"),
        (["runs", "a" * 300], "File name too long"),
        (["chart", str(CARTPOLE), "-o", "nowhere/values.yaml"], "nowhere"),
    ],
)
def test_path_that_the_system_refuses_is_no_traceback(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"], ["audit", "-h"]])
def test_help_is_a_success(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    assert "tidegate" in capsys.readouterr().out


def test_error_is_told_in_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    code = print_error(ConfigError("a.yaml: what happened", why="because", fix="do `this`"))
    assert code == 2
    assert capsys.readouterr().err == "tidegate: a.yaml: what happened. Because. Do `this`.\n"
    print_error(ConfigError("second is no run folder", why="it is empty"))
    assert capsys.readouterr().err == "tidegate: second is no run folder. It is empty.\n", (
        "a folder's own name"
    )
    assert print_error(UnavailableError("Nobody answers?")) == 1
    assert capsys.readouterr().err == "tidegate: Nobody answers?\n"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["tidegate.cli.app", "tidegate.cli.up.command", "tidegate.launch.serve"])
def test_what_supervises_loads_nothing_that_computes_or_draws(module: str) -> None:
    program = (
        f"import sys, {module}; sys.exit(bool({{'torch', 'matplotlib', 'gymnasium'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or f"{module} loads too much"


def test_serve_refuses_a_folder_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys, "modules", dict(sys.modules)
        )  # what it keeps from loading is for its own process only
        assert serve.main(["task_queue", "--run-dir", str(tmp_path)]) == 2
    assert "no run folder" in capsys.readouterr().err


def test_serve_refuses_an_instance_that_the_run_does_not_have(tmp_path: Path) -> None:
    write_run(tmp_path)
    with pytest.raises(ConfigError, match=r"raise actor\.replicas"):
        serve.serve("actor", run_dir=tmp_path, index=2)
    with pytest.raises(ConfigError, match="leave --index out"):
        serve.serve("learner", run_dir=tmp_path, index=1)
