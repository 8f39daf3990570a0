"""A run opened again by TensorBoard's own reader equals its step log."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.unit.cli.run_folder import write_accounting, write_run
from tidegate.cli.app import run
from tidegate.cli.ui.copies import COPIES_JSON, Copies
from tidegate.cli.up.history import read_steps
from tidegate.launch.run_folder import ProcessesRecord, read_record, write_processes
from tidegate.runtime.run_event_log import RunEventLog

pytestmark = pytest.mark.slow


def opened(place: Path) -> Any:
    accumulator = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def track(folder: Path, to: Path) -> Path:
    assert run(["track", str(folder), "--to", str(to)]) == 0
    return to / read_record(folder).run_id


def test_every_number_of_the_step_log_is_there_with_its_step_and_time(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_accounting(folder)
    found = opened(track(folder, tmp_path / "board"))
    for name in ("loss", "mean_return", "lag_max", "ess", "env_steps"):
        expected = [(update["step"], update[name], update["at_s"]) for update in read_steps(folder)]
        scalars = [(each.step, each.value, each.wall_time) for each in found.Scalars(f"train/{name}")]
        assert scalars == [pytest.approx(each) for each in expected]
    assert "train/mean_reward" not in found.Tags()["scalars"], "a value that no update has"
    assert "run file" in found.Tags()["tensors"]


def test_run_that_is_tracked_again_goes_on_where_it_was(tmp_path: Path) -> None:
    folder, board = tmp_path / "run", tmp_path / "board"
    write_accounting(folder, batches=2)
    track(folder, board)
    steps = folder / "learner" / "steps.jsonl"
    line = steps.read_bytes().splitlines()[-1].replace(b'"step":2', b'"step":3')
    steps.write_bytes(steps.read_bytes() + line + b"\n")
    RunEventLog(folder).append(
        b'{"kind":"evaluation","at_s":1800000009.0,"version":"0-aaaa@3","evaluation_return":9.0}'
    )
    place = track(folder, board)
    track(folder, board)
    found = opened(place)
    assert [each.step for each in found.Scalars("train/loss")] == [1, 2, 3]
    assert [(each.step, each.value) for each in found.Scalars("evaluation/evaluation_return")] == [(3, 9.0)]


def test_evaluations_come_also_after_older_ones_left_the_event_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.runtime.run_event_log.BYTES_MAX", 100)
    folder, board = tmp_path / "run", tmp_path / "board"
    write_accounting(folder)
    place = track(folder, board)
    for step in range(1, 6):
        RunEventLog(folder).append(
            b'{"kind":"evaluation","at_s":180000000%d.5,"version":"0-aaaa@%d","evaluation_return":9.0}'
            % (step, step)
        )
        track(folder, board)
    found = opened(place).Scalars("evaluation/evaluation_return")
    assert [each.step for each in found] == [1, 2, 3, 4, 5]


def test_copy_of_a_run_in_a_cluster_is_followed_beyond_its_target_until_the_pod_ends(tmp_path: Path) -> None:
    folder, board = tmp_path / "run", tmp_path / "board"
    write_accounting(folder, batches=2)
    (folder / COPIES_JSON).write_bytes(msgspec.json.encode(Copies()))
    place = board / read_record(folder).run_id

    def complete(ended: bool) -> None:
        # The process that copies is in another container, whose ids are not those of this one.
        write_processes(folder, ProcessesRecord(2**22 + 1, 0.0, ended, {}))

    def await_step(step: int) -> None:
        deadline_s = time.monotonic() + 60.0
        while not place.is_dir() or step not in [each.step for each in scalars()]:
            assert time.monotonic() < deadline_s
            assert tracking.poll() is None
            time.sleep(0.1)

    def scalars() -> list[Any]:
        found = opened(place)
        return found.Scalars("train/loss") if "train/loss" in found.Tags()["scalars"] else []

    complete(ended=False)
    command = [
        sys.executable,
        "-m",
        "tidegate.cli.main",
        "track",
        str(folder),
        "--to",
        str(board),
        "--stay",
        "--every=0.1",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tracking:
        await_step(2)
        complete(ended=True)
        assert tracking.stdout is not None
        assert tracking.stdout.readline() == f"{board}: 2 updates of {read_record(folder).run_id}\n"
        steps = folder / "learner" / "steps.jsonl"
        line = steps.read_bytes().splitlines()[-1].replace(b'"step":2', b'"step":3')
        steps.write_bytes(steps.read_bytes() + line + b"\n")
        complete(ended=False)
        await_step(3)
        os.kill(tracking.pid, signal.SIGTERM)
        assert tracking.wait(timeout=30.0) == 130
    assert [each.step for each in scalars()] == [1, 2, 3]


def test_unknown_tracker_is_refused_with_those_that_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run")
    assert run(["track", str(tmp_path / "run"), "--with", "notebook", "--to", str(tmp_path)]) == 2
    assert "Use tensorboard" in capsys.readouterr().err
