"""Processes beside a run: they see its end, and none outlives it or delays it beyond its deadline."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.cli.run_folder import CARTPOLE
from tidegate.core.errors import ConfigError
from tidegate.launch.companions import Companion, companions_beside, companions_of, declare_backups
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_folder import lock
from tidegate.launch.supervised import is_supervised
from tidegate.runtime.backup_state import BackupState, read_state

STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""


def test_trackers_of_the_run_file_run_beside_it_and_a_name_alone_is_enough(tmp_path: Path) -> None:
    plan = read_run_file(CARTPOLE, ["track=[mlflow, {tracker: wandb, to: boards, end_deadline_s: 5}]"])
    first, second = companions_of(plan, tmp_path)
    assert (first.name, second.name) == ("track-mlflow", "track-wandb")
    assert first.arguments[-1] == ".tidegate/mlflow"
    assert second.arguments == ["track", str(tmp_path), "--with", "wandb", "--to", "boards"]
    assert second.end_deadline_s == 5.0


def test_backup_that_the_run_file_asks_for_is_due_before_its_process_works(tmp_path: Path) -> None:
    asked = read_run_file(CARTPOLE, ["backup={to: 's3://bucket/all/', every_s: 60}"])
    declare_backups(asked, tmp_path, run_id="cartpole-1")
    state = read_state(tmp_path)
    assert state is not None
    assert (state.place, state.every_s, state.number) == ("s3://bucket/all/cartpole-1", 60.0, 0)
    assert state.begun_at_s > 0.0
    declare_backups(read_run_file(CARTPOLE, []), tmp_path, run_id="cartpole-1")
    state = read_state(tmp_path)
    assert isinstance(state, BackupState)
    assert state.every_s == 0.0


def test_unknown_tracker_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="tensorboard"):
        read_run_file(CARTPOLE, ["track=[notebook]"])


def test_tracker_gets_the_variables_of_its_package_and_no_other_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "w")
    monkeypatch.setenv("OPENAI_API_KEY", "o")
    [mlflow, wandb] = companions_of(read_run_file(CARTPOLE, ["track=[mlflow, wandb]"]), tmp_path)
    assert "WANDB_API_KEY" in wandb.inherits
    assert "OPENAI_API_KEY" not in wandb.inherits
    assert "WANDB_API_KEY" not in mlflow.inherits


@pytest.mark.slow
def test_hanging_companion_that_ignores_signals_is_gone_after_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pid_file = tmp_path / "pid"
    start = subprocess.Popen

    def stubborn(command: list[str], **options: object) -> "subprocess.Popen[bytes]":
        return start([sys.executable, "-c", STUBBORN, str(pid_file)], **options)  # pyright: ignore[reportCallIssue, reportArgumentType]

    monkeypatch.setattr(subprocess, "Popen", stubborn)
    companion = Companion(name="track-mlflow", arguments=["track", "RUN"], end_deadline_s=0.2)
    with companions_beside([companion], tmp_path):
        while not pid_file.is_file() or not pid_file.read_text():
            time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
    assert "track-mlflow did not end" in capsys.readouterr().err


def test_folder_is_supervised_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    assert not is_supervised(tmp_path)
    assert not list(tmp_path.iterdir()), "a look leaves nothing behind"
    held = lock(tmp_path)
    assert is_supervised(tmp_path)
    os.close(held)
    assert not is_supervised(tmp_path)
