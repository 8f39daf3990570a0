"""A run whose machine is lost goes on from its backup alone, in an empty folder."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import ROOT, START_TIMEOUT_S, Run
from tests.e2e.killing import end_after_more_steps, lose_machine

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.extended, pytest.mark.timeout(900)]

MAX_LAG = 4
STEPS = 20
SETTINGS = (
    f"staleness.max_lag={MAX_LAG}",
    "learner.checkpoint_every_steps=5",
    # Tasks in flight are published again. Without that the run would stand still for so long.
    "task_queue.task_deadline_s=600",
)


def test_run_goes_on_from_its_backup_on_an_empty_machine(start: Callable[..., Run], tmp_path: Path) -> None:
    bucket = (tmp_path / "bucket").as_uri()
    words = ("runs/cartpole.yaml", *(word for setting in SETTINGS for word in ("--set", setting)))
    run = start(
        *words, "--set", f"backup={{to: {bucket}, every_s: 2}}", "--until", "", folder=tmp_path / "run"
    )
    run.until_trains(STEPS)
    number = newest(run)
    run.until(lambda: newest(run) > number, timeout_s=120, what="backup of a version that was trained")
    sentence = re.compile(rf"number [0-9]+ in {re.escape(bucket)}/\S+ holds version")
    # The supervisor and admission publish it, each in its own time.
    run.until(lambda: sentence.match(run.status()["backup"]) is not None, timeout_s=120, what="sentence")
    run.until(
        lambda: run.status()["values"].get("backup_bytes", 0) > 0, timeout_s=120, what="size of a backup"
    )
    # Without the process that makes backups the run goes on, and others say that there are none.
    [backup] = [each for each in psutil.Process(run.process.pid).children() if "backup" in each.cmdline()]
    backup.kill()
    run.until(lambda: "none was completed" in run.status()["backup"], timeout_s=120, what="backup is missed")
    assert run.status()["values"]["backup_behind"] > 3
    lost = run.steps()
    lose_machine(run)

    again = tmp_path / "again"
    command = [sys.executable, "-m", "tidegate.cli.main"]
    subprocess.run([*command, "restore", bucket, str(again)], check=True, cwd=ROOT, timeout=START_TIMEOUT_S)
    # The run file is that of the backup, whose place is the same.
    resumed = start(str(again / "run.yaml"), "--until", "", folder=again)
    before = len(resumed.steps())
    assert 0 < before <= len(lost)
    end_after_more_steps(resumed, steps=STEPS, max_lag=MAX_LAG)
    assert newest(resumed) > number, "the last backup of the resumed run"


def newest(run: Run) -> int:
    """The number of the newest backup; 0 before the first."""
    try:
        return json.loads((run.folder / "backup.json").read_text())["number"]
    except (FileNotFoundError, json.JSONDecodeError):
        return 0
