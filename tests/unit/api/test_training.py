"""What ``tidegate.train`` makes of its arguments, before a process is started."""

import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidegate
from tests.unit.cli.run_folder import CARTPOLE
from tests.unit.launch.test_run_file import TEXT
from tidegate.api import training
from tidegate.cli.callbacks.events import RunUpdate
from tidegate.core.errors import ConfigError


@pytest.mark.parametrize("value", [np.int64(2), np.array([1.0, 2.0]), Path("a"), (1, "b"), None])
def test_values_of_numpy_and_paths_are_values_of_a_run_file(value: Any) -> None:
    # The second setting ends the call once both are read.
    with pytest.raises(ConfigError, match="max_lagg"):
        tidegate.train(CARTPOLE, overrides={"staleness.max_lagg": value})
    with pytest.raises(ConfigError, match="max_lagg"):
        tidegate.train({"run": "a", "staleness": {"max_lagg": value}})


def test_value_that_no_run_file_has_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no value of a run file\..*it is set"):
        tidegate.train(CARTPOLE, overrides={"staleness.max_lag": {1}})


def test_files_of_a_run_file_that_is_a_mapping_are_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("code").mkdir()
    run_file = {**TEXT, "files_dir": "code", "policy": {"kind": "gone.py:Net"}}
    with pytest.raises(ConfigError, match=f"{tmp_path}/code/gone.py"):
        tidegate.train({**run_file, "workload": {"kind": "segments", "env": "CartPole-v1"}})


def test_home_is_no_folder_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"{tmp_path}/gone.yaml"):
        tidegate.train("~/gone.yaml")


class _Running:
    """A platform that does not end by itself."""

    def wait(self, timeout: float) -> None:
        raise subprocess.TimeoutExpired("up", timeout)


class _Batches:
    """Events as they are found, look by look."""

    def __init__(self, *batches: list[int]) -> None:
        self._batches = iter(batches)

    def new(self) -> list[RunUpdate]:
        return [
            RunUpdate({"step": step, "lineage": "0-aaaa", "at_s": float(step)})
            for step in next(self._batches)
        ]


def test_events_found_together_with_the_one_that_ends_a_run_are_told_too() -> None:
    told: list[int] = []

    def on_update(update: RunUpdate) -> bool:
        told.append(update.step)
        return update.step == 3

    process: Any = _Running()
    events: Any = _Batches([1, 2], [3, 4, 5], [6])
    training._follow(process, events, training._listeners(on_update, ()), stop=threading.Event())  # pyright: ignore[reportPrivateUsage]
    assert told == [1, 2, 3, 4, 5]
