"""Folders of ``tidegate new``: what they hold, that their own tests pass, and that their runs can work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.core.errors import ConfigError
from tidegate.launch.preparation import write_datasets
from tidegate.launch.run_file import read_run_file
from tidegate.launch.templates import kinds, write_template

KINDS = ["agent", "conversation", "curriculum", "env", "objective", "task"]


def test_there_is_a_folder_for_each_kind() -> None:
    assert kinds() == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_folder_holds_a_run_of_the_given_name(tmp_path: Path, kind: str) -> None:
    written = [path.name for path in write_template(kind, "mine", tmp_path / "mine")]
    assert {"README.md", "run.yaml"} < set(written)
    plan = read_run_file(tmp_path / "mine" / "run.yaml", [])
    assert plan.file.run == "mine"
    write_datasets(plan, tmp_path / "data")
    readme = (tmp_path / "mine" / "README.md").read_text(encoding="utf-8")
    assert readme.startswith("# mine\n")
    assert {line.split("`")[1] for line in readme.splitlines() if line.startswith("| `")} == set(written) - {
        "README.md"
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_test_of_the_folder_passes(tmp_path: Path, kind: str) -> None:
    write_template(kind, "mine", tmp_path / "mine")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "mine",
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("game", "mine", "There is no template 'game'. use one of: agent, conversation, curriculum"),
        ("task", "My task", "is no name of a run"),
        ("task", "full", "is not empty"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path: Path, kind: str, name: str, said: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(ConfigError, match=said):
        write_template(kind, name, tmp_path / name)
