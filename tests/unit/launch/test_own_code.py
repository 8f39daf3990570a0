"""What a run loads: each piece by its setting, its digests, and a changed file of a resumed run."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.launch.test_carried_files import SEGMENTS
from tests.unit.launch.test_run_file import TEXT
from tidegate.core.errors import ConfigError, CorruptionError, StaleFolderError
from tidegate.launch.carried_files import files_of
from tidegate.launch.own_code import OWN_CODE_JSON, own_code_of, read_own_code, record_own_code, records_of
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.run_plan import RunPlan


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a task, a reward and an objective; the task imports two files beside it."""
    folder = tmp_path / "project"
    (folder / "parts").mkdir(parents=True)
    (folder / "task.py").write_text("import json\nfrom parts import words\nclass Words: pass\n")
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "words.py").write_text("from . import letters\n")
    (folder / "parts" / "unused.py").write_text("x = 1\n")
    (folder / "reward.py").write_text("def score(p, c, a): return 1\n")
    (folder / "objective.py").write_text("def my_loss(t, s): return t\n")
    (folder / "curriculum.py").write_text("def hardest(bins, step, rng): return [1 for _ in bins]\n")
    return folder


def plan(project: Path, **changes: Any) -> RunPlan:
    raw = {**TEXT, "workload": {**TEXT["workload"], "env": "task.py:Words"}, "files_dir": str(project)}
    return parse_plan({**raw, **changes}, source="test")


def test_each_piece_is_found_by_its_setting(project: Path) -> None:
    whole = plan(
        project,
        environment={"rewards": {"task": 1.0, "mine": 1.0}, "verifiers": {"mine": "reward.py:score"}},
        learner={"language_model": {"objective": "objective.py:my_loss"}},
        task_queue={"curriculum": "curriculum.py:hardest"},
    )
    found = {setting: os.path.basename(each.source) for setting, each in own_code_of(whole).items()}
    assert found == {
        "workload.env": "task.py",
        "environment.verifiers.mine": "reward.py",
        "learner.language_model.objective": "objective.py",
        "task_queue.curriculum": "curriculum.py",
    }
    assert own_code_of(parse_plan(TEXT, source="test")) == {}


def test_digests_are_of_the_file_and_of_what_it_imports_beside_it(project: Path) -> None:
    record = records_of(plan(project))["workload.env"]
    assert set(record.files) == {"task.py", "parts/__init__.py", "parts/words.py"}
    assert record.files["task.py"] == hashlib.sha256((project / "task.py").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"workload": {**TEXT["workload"], "env": "poetry"}},
            "workload.env: There is no 'poetry' among the tasks",
        ),
        (
            {"learner": {"language_model": {"objective": "tiss"}}},
            r"learner\.language_model\.objective: There is no 'tiss'.* name one of: tis",
        ),
        (
            {"environment": {"rewards": {"mine": 1.0}, "verifiers": {"mine": "reward.py:scores"}}},
            r"environment\.verifiers\.mine: reward\.py:scores: \S*reward\.py defines no 'scores'",
        ),
        (
            {"task_queue": {"curriculum": "curriculum.py:easiest"}},
            r"task_queue\.curriculum: curriculum\.py:easiest: \S*curriculum\.py defines no 'easiest'",
        ),
    ],
)
def test_code_that_is_not_there_is_refused_by_its_setting(
    project: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        own_code_of(plan(project, **changes))


def test_network_of_segments_is_found_by_its_setting_and_carried_to_pods(project: Path) -> None:
    (project / "network.py").write_text("import parts.words\nclass Net: pass\n")
    raw = {**SEGMENTS, "policy": {"kind": "network.py:Net"}, "files_dir": str(project)}
    raw["workload"] = {**SEGMENTS["workload"], "env": "gymnasium:CartPole-v1"}
    whole = parse_plan(raw, source="test")
    assert own_code_of(whole)["policy.kind"].attribute == "Net"
    assert set(files_of(whole)) == {"network.py", "parts/__init__.py", "parts/words.py"}


def test_curriculum_of_segments_is_refused(project: Path) -> None:
    raw = {**SEGMENTS, "task_queue": {"curriculum": "curriculum.py:hardest"}, "files_dir": str(project)}
    with pytest.raises(ConfigError, match=r"task_queue\.curriculum: .* has nothing to choose from"):
        own_code_of(parse_plan(raw, source="test"))


def test_changed_file_of_a_resumed_run_is_refused_by_its_name(project: Path, tmp_path: Path) -> None:
    record_own_code(plan(project), tmp_path)
    record_own_code(plan(project), tmp_path)
    (project / "reward.py").write_text("x = 1\n")
    record_own_code(plan(project), tmp_path)
    (project / "parts" / "words.py").write_text("x = 2\n")
    with pytest.raises(
        StaleFolderError, match=r"parts/words\.py of workload\.env has changed.*tidegate fork"
    ):
        record_own_code(plan(project), tmp_path)


def test_run_without_own_code_writes_no_record(tmp_path: Path) -> None:
    record_own_code(parse_plan(TEXT, source="test"), tmp_path)
    assert read_own_code(tmp_path) is None


def test_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / OWN_CODE_JSON).write_text("{")
    with pytest.raises(CorruptionError, match=r"own_code\.json cannot be read"):
        read_own_code(tmp_path)
