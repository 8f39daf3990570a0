"""``tidegate model``, and what ``tidegate up`` sees to before services start."""

import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.unit.launch.test_run_file import TEXT
from tests.unit.models.tiny_llama import make_folder
from tidegate.cli.app import run
from tidegate.core.errors import ConfigError
from tidegate.launch import preparation
from tidegate.launch.preparation import prepare_model
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.run_plan import RunPlan
from tidegate.models.model_folder import folder_digest


def plan_of(path: str) -> RunPlan:
    plan = parse_plan(TEXT, source="sums.yaml")
    policy = msgspec.structs.replace(plan.file.policy, kind="transformers", path=path)
    return msgspec.structs.replace(plan, file=msgspec.structs.replace(plan.file, policy=policy))


def test_the_command_prints_folder_and_digest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(tmp_path / "llama", tied=True)
    assert run(["model", str(folder)]) == 0
    assert capsys.readouterr().out.split() == [str(folder), folder_digest(folder)]
    assert run(["model", str(tmp_path / "nowhere")]) == 2
    assert "is no folder of a pretrained model" in capsys.readouterr().err


def test_a_folder_without_a_model_is_found_before_anything_starts(tmp_path: Path) -> None:
    prepare_model(parse_plan(TEXT, source="sums.yaml"))
    prepare_model(plan_of(str(make_folder(tmp_path / "llama", tied=True))))
    with pytest.raises(ConfigError, match="is no folder of a pretrained model"):
        prepare_model(plan_of(str(tmp_path / "nowhere")))
    with pytest.raises(ConfigError, match=r"needs policy\.path"):
        prepare_model(plan_of(""))


class Child:
    """Stands for the process that makes the folder."""

    def __init__(self, *, folder: Path, problem: str) -> None:
        self.commands: list[list[str]] = []
        self._folder = folder
        self._problem = problem

    def run(self, command: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        self.commands.append(command)
        if not self._problem:
            self._folder.mkdir()
        return subprocess.CompletedProcess(command, 2 if self._problem else 0, "", self._problem)


def with_child(monkeypatch: pytest.MonkeyPatch, folder: Path, *, problem: str = "") -> Child:
    child = Child(folder=folder, problem=problem)

    def found(_cache: Path) -> Path:
        return folder

    monkeypatch.setattr(preparation, "smollm2_folder", found)
    monkeypatch.setattr(subprocess, "run", child.run)
    return child


def test_smollm2_is_made_once_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    child = with_child(monkeypatch, tmp_path / "smollm2-1")
    prepare_model(plan_of("smollm2"))
    prepare_model(plan_of("smollm2"))
    assert [command[-2:] for command in child.commands] == [["model", "smollm2"]]
    assert capsys.readouterr().err.count("smollm2-1: half a minute, once") == 1


def test_why_smollm2_could_not_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_child(monkeypatch, tmp_path / "smollm2-1", problem="warning\ntidegate: No space left on device\n")
    with pytest.raises(ConfigError, match=r"could not be built.*No space left on device"):
        prepare_model(plan_of("smollm2"))
