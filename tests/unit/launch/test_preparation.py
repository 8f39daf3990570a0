"""A run folder gets a person's own prompts where the run file names them, and the environment's where it does not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.test_run_file import TEXT
from tidegate.core.errors import ConfigError
from tidegate.launch.preparation import prepare_pod, write_datasets
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


def test_pods_of_task_queue_and_warm_up_write_the_rows_that_they_read(tmp_path: Path) -> None:
    for service in ("task_queue", "learner", "actor", "environment"):
        prepare_pod(service, plan(), data_dir=tmp_path / service)
    assert len(prompts(tmp_path / "task_queue" / "data" / "train.jsonl")) > 100
    assert (tmp_path / "learner" / "data" / "demonstrations.jsonl").exists()
    assert not (tmp_path / "actor").exists()
    assert not (tmp_path / "environment").exists()
    pretrained = parse_plan(
        {**TEXT, "policy": {"kind": "transformers", "path": "/models/base"}}, source="test"
    )
    prepare_pod("learner", pretrained, data_dir=tmp_path / "pretrained")
    assert not (tmp_path / "pretrained").exists()


def test_module_of_an_environment_may_lie_beside_the_run_file(tmp_path: Path) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "my_game.py").write_text(
        'import gymnasium\ngymnasium.register("Mine-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")\n'
    )
    (project / "run.yaml").write_text(
        "run: mine\nworkload: {kind: segments, env: 'my_game:Mine-v0'}\npolicy: {kind: mlp}\n"
        "batch_size: 2\nmax_running: 6\n"
    )
    checked = subprocess.run(
        [sys.executable, "-m", "tidegate.cli.main", "check", str(project / "run.yaml")],
        cwd=elsewhere,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert checked.returncode == 0, checked.stderr
    assert "my_game.py" in checked.stdout
