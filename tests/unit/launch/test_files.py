"""Small files of a run folder: events, steps, samples, datasets."""

import json
from pathlib import Path

import pytest

from tests.support.disks import file_size_limited
from tests.unit.cli.run_folder import CARTPOLE, write_accounting, write_samples
from tests.unit.launch.test_run_file import TEXT
from tidegate.cli.samples import last_working_sample, numbers, read_samples
from tidegate.cli.up.history import read_history, read_steps
from tidegate.core.errors import ConfigError
from tidegate.launch.preparation import write_datasets
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_parsing import parse_plan
from tidegate.runtime import run_event_log
from tidegate.runtime.run_event_log import RunEventLog, read_events


def test_events_are_kept_by_kind_in_their_order(tmp_path: Path) -> None:
    log = RunEventLog(tmp_path)
    for event in (b'{"kind":"evaluation","at_s":1}', b'{"kind":"limits"}', b'{"kind":"evaluation","at_s":2}'):
        log.append(event)
    assert [event["at_s"] for event in read_events(tmp_path, "evaluation")] == [1, 2]


def test_event_that_is_no_line_of_json_spoils_no_other(tmp_path: Path) -> None:
    log = RunEventLog(tmp_path)
    for event in (b"\xff\xfe", b'{"kind":"a"}\n{"kind":"a"}', b'{"kind":"a", cut', b'{"kind":"a"}'):
        log.append(event)
    assert len(list(read_events(tmp_path, "a"))) == 1


def test_events_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_event_log, "BYTES_MAX", 200)
    log = RunEventLog(tmp_path)
    for number in range(50):
        log.append(json.dumps({"kind": "a", "number": number}).encode())
    kept = [event["number"] for event in read_events(tmp_path, "a")]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 600
    assert kept == list(range(50 - len(kept), 50))


def test_event_that_a_full_disk_cuts_is_lost_alone(tmp_path: Path) -> None:
    log = RunEventLog(tmp_path)
    log.append(b'{"kind":"a","number":1}')
    with file_size_limited((tmp_path / "events.jsonl").stat().st_size + 10):
        log.append(b'{"kind":"a","number":2}')
    log.append(b'{"kind":"a","number":3}')
    assert [event["number"] for event in read_events(tmp_path, "a")] == [1, 3]


def test_steps_are_read_over_rotation_and_cut_lines(tmp_path: Path) -> None:
    write_accounting(tmp_path, batches=3)
    path = tmp_path / "learner" / "steps.jsonl"
    path.with_name("steps.jsonl.1").write_text(
        '{"step": 0, "at_s": 1.0, "mean_return": 7.0}\n', encoding="utf-8"
    )
    with path.open("ab") as file:
        file.write(b'{"step": 9, "at')
    assert [step["step"] for step in read_steps(tmp_path)] == [0, 1, 2, 3]
    assert read_history(tmp_path, "mean_return")[0] == (1.0, 7.0)
    assert read_history(tmp_path, "mean_reward") == []


def test_folder_without_steps_has_no_history(tmp_path: Path) -> None:
    assert list(read_steps(tmp_path)) == []


def test_last_working_sample_is_from_before_the_pause(tmp_path: Path) -> None:
    assert last_working_sample(tmp_path) is None
    write_samples(tmp_path)
    sample = last_working_sample(tmp_path)
    assert sample is not None
    assert numbers(sample)["learner_idle_ratio"] == 0.6
    assert numbers(sample)["actor.steps_total"] == 5.0
    assert len(list(read_samples(tmp_path))) == 2


def test_text_workload_gets_its_datasets_once(tmp_path: Path) -> None:
    plan = parse_plan(TEXT, source="test")
    write_datasets(plan, tmp_path)
    heldout = tmp_path / "heldout.jsonl"
    prompts = {json.loads(line)["prompt_id"] for line in heldout.read_text(encoding="utf-8").splitlines()}
    trained = {
        json.loads(line)["prompt_id"]
        for line in (tmp_path / "train.jsonl").read_text(encoding="utf-8").splitlines()
    }
    assert prompts
    assert trained
    assert not prompts & trained
    heldout.write_text("mine\n", encoding="utf-8")
    write_datasets(plan, tmp_path)
    assert heldout.read_text(encoding="utf-8") == "mine\n"


def test_segments_need_no_dataset(tmp_path: Path) -> None:
    write_datasets(read_run_file(CARTPOLE, []), tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_unknown_text_task_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    plan = parse_plan({**TEXT, "workload": {**TEXT["workload"], "env": "poetry"}}, source="test")
    with pytest.raises(ConfigError, match="arithmetic"):
        write_datasets(plan, tmp_path)
