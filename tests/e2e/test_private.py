"""What a run keeps from other users of the machine, and its services from each other."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Run
from tests.support.dumping_env import FOLDER_VARIABLE

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

SECRETS = {"SOME_CLOUD_API_KEY": "secret-of-the-shell", "TIDEGATE_GATEWAY_KEY": "secret-of-the-gateway"}


def open_to_others(folder: Path) -> list[str]:
    """What below the folder of a live run is open to other users, but for what it renames or removes meanwhile."""
    found: list[str] = []
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place) / name
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mode & 0o077:
                    found.append(str(path))
    return found


def test_no_process_has_the_secrets_of_the_shell_and_no_file_is_open_to_others(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    for name, value in {**SECRETS, FOLDER_VARIABLE: str(dumps)}.items():
        monkeypatch.setenv(name, value)
    run = start(
        *(
            "runs/cartpole.yaml",
            "--for",
            "500s",
            "--set",
            "workload.env=tests.support.dumping_env:Dumping-v0",
        ),
        *("--set", f"pass_env=[{FOLDER_VARIABLE}]"),
    )
    run.until(lambda: len(run.steps()) >= 2, timeout_s=300, what="training")
    for process in psutil.Process(run.process.pid).children(recursive=True):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            started_with = Path(f"/proc/{process.pid}/environ").read_bytes()
            assert not [name for name, value in SECRETS.items() if value.encode() in started_with], process
    seen = [json.loads(path.read_text()) for path in dumps.glob("*.json")]
    assert any("serve actor" in each["title"] for each in seen)
    for each in seen:
        assert "PATH" in each["variables"]
        assert not SECRETS.keys() & each["variables"].keys(), each["title"]
    assert run.folder.stat().st_mode & 0o777 == 0o700
    assert open_to_others(run.folder) == []
