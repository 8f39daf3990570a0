"""The prompts of a user's task, written by a process of its own, and what is said of code that gives none."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tidegate.core.errors import ConfigError
from tidegate.environment.own_code.rows import RowsQuestion, write_rows
from tidegate.runtime.own_code.references import resolve

pytestmark = pytest.mark.integration
HERE = str(Path(__file__).parent)


def write(name: str, folder: Path, *, deadline_s: float = 60.0, **more: Any) -> bool:
    reference = resolve(f"own_tasks.py:{name}", kind="tasks", folder=HERE)
    question = RowsQuestion(reference, str(folder), seed=1, num_demonstrations=60, **more)
    return write_rows(question, environ=os.environ, deadline_s=deadline_s).is_conversation


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_problems_and_their_answers_are_written(tmp_path: Path) -> None:
    assert not write("Reverse", tmp_path)
    train, heldout = rows(tmp_path / "train.jsonl"), rows(tmp_path / "heldout.jsonl")
    assert len(train) + len(heldout) == 50
    assert len(rows(tmp_path / "demonstrations.jsonl")) == 60
    assert all(row["answer"] == row["prompt"][-2::-1] for row in train)


def test_solutions_of_a_conversation_are_played(tmp_path: Path) -> None:
    assert write("Guess", tmp_path, bins=("low",))
    shown = rows(tmp_path / "demonstrations.jsonl")[0]
    number = shown["prompt"][:-1]
    assert shown["exchanges"] == [[f"turn 1 of {number}, seed 0", number]]


def test_function_with_a_dataset_demonstrates_its_answers(tmp_path: Path) -> None:
    problem = {"prompt_id": "p", "prompt": "ab=", "answer": "ba", "bin": "all"}
    (tmp_path / "train.jsonl").write_text(json.dumps(problem) + "\n", encoding="utf-8")
    write("score", tmp_path, has_dataset=True)
    assert rows(tmp_path / "demonstrations.jsonl")[0] == {"prompt": "ab=", "completion": "ba"}
    assert rows(tmp_path / "train.jsonl") == [problem]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("score", "has no prompts.*set workload.dataset"),
        ("Unloadable", r"FileNotFoundError at \S*own_tasks\.py:[0-9]+ in __init__"),
        ("Few", "has no .* problems.*a fifth"),
        ("Exits", "ended the process that asked it for its problems, with exit code 4"),
        ("Endless", "were not ready within"),
    ],
)
def test_task_without_usable_problems_is_refused(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        write(name, tmp_path, deadline_s=3.0 if name == "Endless" else 60.0)
    assert not list(tmp_path.iterdir())
