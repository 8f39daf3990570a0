"""What callbacks are told of a run folder: each thing once, in order, and nothing of an earlier start."""

import json
import os
from pathlib import Path

import pytest

from tests.unit.cli.run_folder import START_S, write_text_run
from tidegate.cli.callbacks import run_events
from tidegate.cli.callbacks.events import EndOfRun, KeptCheckpoint, RunEvaluation, RunUpdate
from tidegate.cli.callbacks.run_events import RunEvents


def write_evaluation(folder: Path, step: int, *, at_s: float) -> None:
    event = {"kind": "evaluation", "at_s": at_s, "version": f"0-aaaa@{step}", "solved_share": 0.5}
    with (folder / "events.jsonl").open("a") as file:
        file.write(f"{json.dumps(event)}\n")


def write_checkpoint(folder: Path, number: int, step: int, *, at_s: float) -> Path:
    path = folder / "learner" / "checkpoints" / f"{number:08d}.0-aaaa.{step}"
    path.mkdir(parents=True)
    (path / "manifest.json").write_text("{}")
    os.utime(path / "manifest.json", (at_s, at_s))
    return path


def test_updates_evaluations_and_checkpoints_come_once_in_the_order_of_time(tmp_path: Path) -> None:
    write_text_run(tmp_path, updates=3)
    write_evaluation(tmp_path, 2, at_s=START_S + 2.5)
    kept = write_checkpoint(tmp_path, 1, 1, at_s=START_S + 1.5)
    events = RunEvents(tmp_path, since_s=START_S)
    found = events.new()
    assert [type(each) for each in found] == [
        RunUpdate,
        KeptCheckpoint,
        RunUpdate,
        RunEvaluation,
        RunUpdate,
    ]
    assert found[1] == KeptCheckpoint("0-aaaa@1", 1, START_S + 1.5, kept)
    assert found[3] == RunEvaluation("0-aaaa@2", 2, START_S + 2.5, {"solved_share": 0.5})
    assert events.new() == []
    write_evaluation(tmp_path, 3, at_s=START_S + 3.5)
    write_checkpoint(tmp_path, 2, 3, at_s=START_S + 4.0)
    assert [type(each) for each in events.new()] == [RunEvaluation, KeptCheckpoint]


def test_update_is_a_record_with_its_version_and_a_mapping_of_its_line(tmp_path: Path) -> None:
    write_text_run(tmp_path, updates=1)
    [update] = RunEvents(tmp_path, since_s=0.0).new()
    assert isinstance(update, RunUpdate)
    assert (update.step, update.version, update.at_s) == (1, "0-aaaa@1", START_S + 1)
    assert update["loss"] == 0.1
    assert update.get("no_such_field") is None
    assert update.numbers["entropy"] == pytest.approx(1.4), "the metrics are among its numbers"
    assert dict(update)["metrics"]["my_own_figure"] == 7.0


def test_what_an_earlier_start_wrote_is_not_told(tmp_path: Path) -> None:
    write_text_run(tmp_path, updates=3)
    write_evaluation(tmp_path, 2, at_s=START_S + 2.5)
    write_checkpoint(tmp_path, 1, 1, at_s=START_S + 1.0)
    events = RunEvents(tmp_path, since_s=START_S + 2.6)
    [update] = events.new()
    assert isinstance(update, RunUpdate)
    assert update.step == 3


def test_end_has_the_summary_of_this_start_or_none(tmp_path: Path) -> None:
    write_text_run(tmp_path, updates=1)
    summary = tmp_path / "summary.json"
    summary.write_text(json.dumps({"ended_by": "target", "succeeded": True}))
    os.utime(summary, (START_S - 10, START_S - 10))
    events = RunEvents(tmp_path, since_s=START_S)
    assert events.end(now_s=9.0) == EndOfRun("", succeeded=False, at_s=9.0, summary=None)
    os.utime(summary, (START_S + 10, START_S + 10))
    end = events.end(now_s=9.0)
    assert (end.ended_by, end.succeeded) == ("target", True)
    summary.write_text("{")
    os.utime(summary, (START_S + 11, START_S + 11))
    assert events.end(now_s=9.0).summary is None


def test_slow_callback_misses_the_oldest_events_and_their_number_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_events, "EVENTS_MAX", 2)
    write_text_run(tmp_path, updates=5)
    events = RunEvents(tmp_path, since_s=START_S)
    steps = [each.step for each in events.new() if isinstance(each, RunUpdate)]
    assert steps == [4, 5]
    assert events.num_skipped == 3


def append_update(folder: Path, step: int, *, at_s: float) -> None:
    with (folder / "learner" / "steps.jsonl").open("a") as log:
        log.write(json.dumps({"step": step, "lineage": "0-aaaa", "at_s": at_s}) + "\n")


def steps_of(events: RunEvents) -> list[int]:
    return [each.step for each in events.new() if isinstance(each, RunUpdate)]


def test_update_after_the_clock_was_set_back_is_told_and_a_rotated_log_is_not_told_again(
    tmp_path: Path,
) -> None:
    write_text_run(tmp_path, updates=3)
    events = RunEvents(tmp_path, since_s=START_S)
    assert steps_of(events) == [1, 2, 3]
    append_update(tmp_path, 4, at_s=START_S + 1.0)
    assert steps_of(events) == [4]
    log = tmp_path / "learner" / "steps.jsonl"
    log.rename(log.with_name("steps.jsonl.1"))
    append_update(tmp_path, 5, at_s=START_S + 1.5)
    assert steps_of(events) == [5]
    assert steps_of(events) == []
