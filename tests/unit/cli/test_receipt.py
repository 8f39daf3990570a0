"""A run's receipt from its files alone."""

from pathlib import Path

import msgspec
import pytest

from tests.unit.cli.run_folder import NUM_STEPS, write_accounting, write_run
from tidegate.cli.app import run
from tidegate.cli.receipt import read_receipt, usage_of_ended
from tidegate.core.receipt import Usage
from tidegate.launch.gpu_processes import count_gpu_processes


def test_receipt_counts_what_the_ledger_has_and_what_the_summary_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_accounting(tmp_path)  # 6 trained and 1 retired before it reached the store
    usage = Usage(starts=2, elapsed_s=7_200.0, cpu_s=3_600.0)
    (tmp_path / "summary.json").write_bytes(msgspec.json.encode({"usage": usage}))
    assert run(["receipt", str(tmp_path), "--json", "--usd-per-hour", "2"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert (found["unit"], found["steps"], found["trajectories"]) == ("steps", 6 * NUM_STEPS, 6)
    assert [(each["reason"], each["trajectories"], each["steps"]) for each in found["wasted"]] == [
        ("retired", 1, 0)
    ]
    assert (found["starts"], found["hours"], found["cpu_hours"], found["usd"]) == (2, 2.0, 1.0, 4.0)


def test_run_that_never_trained_has_a_receipt_of_nothing(tmp_path: Path) -> None:
    write_run(tmp_path)
    found = read_receipt(tmp_path)
    assert (found.steps, found.trajectories, found.starts, found.usd_per_million) == (0, 0, 0, None)


def test_summary_of_an_older_program_has_no_usage(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_bytes(b'{"run_id": "r"}')
    assert usage_of_ended(tmp_path) == Usage()


def test_processes_on_a_gpu_are_counted_by_what_they_logged(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "learner.log").write_text(
        '{"event": "started"}\n{"device": "cuda:0", "event": "device_chosen"}\n'
    )
    (logs / "actor-0.log").write_text('{"device": "cpu", "event": "device_chosen"}\n{"device": "cuda"}\n')
    assert count_gpu_processes(tmp_path) == 1
