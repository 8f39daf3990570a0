"""Tidegate from Python: a run from a program, a notebook, and a run that is cancelled."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import tidegate
from tests.e2e.conftest import ROOT
from tidegate.core.errors import ConfigError

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

CARTPOLE = ROOT / "runs" / "cartpole.yaml"
NOTEBOOK = ROOT / "examples" / "first_run.ipynb"
SMALL = {"workload.unroll_length": 16, "policy.hidden": [16], "learner.checkpoint_every_steps": 2}


def processes_of(folder: Path) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if str(folder) in " ".join(process.info["cmdline"] or ()) and process.info["status"] != "zombie":
            found.append(process)
    return found


class Told:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.checkpoints: list[tidegate.KeptCheckpoint] = []
        self.ends: list[tidegate.EndOfRun] = []

    def on_checkpoint(self, checkpoint: tidegate.KeptCheckpoint) -> None:
        self.checkpoints.append(checkpoint)

    def on_end(self, end: tidegate.EndOfRun) -> None:
        self.ends.append(end)


@pytest.mark.extended
def test_callback_sees_each_update_and_ends_the_run(tmp_path: Path) -> None:
    steps: list[int] = []
    told = Told()

    def on_update(update: tidegate.RunUpdate) -> bool:
        steps.append(update["step"])
        # Three updates may be read at once, before the first checkpoint is.
        return len(steps) >= 3 and bool(told.checkpoints)

    run = tidegate.train(
        CARTPOLE,
        overrides=SMALL,
        time_limit="5m",
        folder=tmp_path / "run",
        on_update=on_update,
        callbacks=[told],
    )
    assert told.checkpoints
    assert told.checkpoints[0].folder.parent == tmp_path / "run" / "learner" / "checkpoints"
    assert [end.ended_by for end in told.ends] == ["interrupted"]
    # Those of the drain included.
    assert steps == list(range(1, len(steps) + 1))
    assert steps == [update["step"] for update in run.updates()]
    assert run.summary is not None
    assert run.summary["ended_by"] == "interrupted"
    assert run.audit().balanced
    assert not run.is_running
    assert processes_of(tmp_path) == []


async def test_cancelled_call_ends_its_run_and_leaves_no_process(tmp_path: Path) -> None:
    training = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_update(_update: tidegate.RunUpdate) -> None:
        loop.call_soon_threadsafe(training.set)

    call = asyncio.create_task(
        tidegate.train_async(
            CARTPOLE, overrides=SMALL, time_limit="5m", folder=tmp_path / "run", on_update=on_update
        )
    )
    await training.wait()
    assert tidegate.Run(tmp_path / "run").is_running
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert processes_of(tmp_path) == []
    assert tidegate.Run(tmp_path / "run").audit().balanced


def test_refused_run_is_an_error_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_lags"):
        tidegate.train(CARTPOLE, overrides={"staleness.max_lags": 1}, folder=tmp_path / "run")
    with pytest.raises(ConfigError, match="Nope-v0"):
        tidegate.train(CARTPOLE, overrides={"workload.env": "Nope-v0"}, folder=tmp_path / "run")


def test_notebook_runs_from_its_first_cell_to_its_last(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "cartpole.yaml").write_text(CARTPOLE.read_text())
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=500
    )
    assert done.returncode == 0, done.stderr
