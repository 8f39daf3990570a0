"""A run folder gets a person's own prompts where the run file names them, and the environment's where it does not."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.test_run_file import TEXT
from tidegate.core.errors import ConfigError
from tidegate.launch.preparation import write_datasets
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.run_plan import RunPlan


def plan(**dataset: Any) -> RunPlan:
    return parse_plan({**TEXT, "workload": {**TEXT["workload"], "dataset": dataset}}, source="test")


def prompts(path: Path) -> list[str]:
    return [json.loads(line)["prompt"] for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(f'{{"question": "{n}+1=", "answer": "{n + 1}"}}\n' for n in range(40)))
    return path


def test_own_prompts_take_the_place_of_the_environment_s(tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "run" / "data"
    write_datasets(plan(path=str(source), prompt_column="question", held_out_share=0.3), folder)
    trained, held_out = prompts(folder / "train.jsonl"), prompts(folder / "heldout.jsonl")
    assert sorted([*trained, *held_out]) == sorted(f"{n}+1=" for n in range(40))
    assert (folder / "demonstrations.jsonl").exists()


def test_without_a_rule_nothing_is_held_out(tmp_path: Path, source: Path) -> None:
    write_datasets(plan(path=str(source), prompt_column="question"), tmp_path / "data")
    assert len(prompts(tmp_path / "data" / "train.jsonl")) == 40
    assert not (tmp_path / "data" / "heldout.jsonl").exists()


def test_a_dataset_that_cannot_be_read_ends_the_command_before_anything_starts(
    tmp_path: Path, source: Path
) -> None:
    with pytest.raises(ConfigError, match=r"mine\.jsonl has no column 'prompt'"):
        write_datasets(plan(path=str(source)), tmp_path / "data")
    assert not (tmp_path / "data" / "train.jsonl").exists()


def test_settings_that_contradict_each_other_are_refused_with_the_run_file() -> None:
    with pytest.raises(ConfigError, match="at most one"):
        plan(path="x.jsonl", held_out_share=0.1, held_out_split="test")
    segments = {"run": "r", "workload": {"kind": "segments", "env": "CartPole-v1", "dataset": {"path": "x"}},
                "policy": {"kind": "mlp"}, "batch_size": 1, "max_running": 1}  # fmt: skip
    with pytest.raises(ConfigError, match="only text has prompts"):
        parse_plan(segments, source="test")
