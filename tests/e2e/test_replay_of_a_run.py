"""``tidegate replay`` of a whole run: what an update was without one of its trajectories, and how far it moved."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, Run
from tidegate.cli.accounting import ledger_path

pytestmark = [pytest.mark.e2e, pytest.mark.extended, pytest.mark.timeout(900)]

TIMEOUT_S = 300.0
UPDATES = 6
SETTINGS = (
    *("batch_size=2", "workload.unroll_length=16", "policy.hidden=[16]"),
    *("learner.checkpoint_every_steps=4", "trajectory_store.replayable_bytes_max=1000000000"),
)


def replayed(folder: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [*(sys.executable, "-m", "tidegate.cli.main", "replay", "--json", "--dir", str(folder)), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_replay_tells_how_far_updates_moved_and_what_one_trajectory_changed(
    start: Callable[..., Run],
) -> None:
    run = start(
        *("runs/cartpole.yaml", "--until", f"version_step>={UPDATES}", "--for", "500s"),
        *(part for setting in SETTINGS for part in ("--set", setting)),
    )
    code, _ = run.wait(timeout_s=600)
    assert code == 0, run.tail()
    with closing(sqlite3.connect(ledger_path(run.folder))) as ledger:
        trajectory_id, lineage, step = ledger.execute(
            "SELECT trajectory_id, trained_lineage, trained_step FROM trajectories WHERE state = 'trained'"
            " ORDER BY trained_step DESC LIMIT 1"
        ).fetchone()
    moved = replayed(run.folder, "--diff", f"{lineage}@{step - 1}")
    assert moved["differing"] == {}
    assert moved["distance"]["policy.0.weight"] > 0.0
    assert replayed(run.folder, "--diff", f"{lineage}@{step + 1}")["distance"]["policy.0.weight"] == 0.0
    without = replayed(run.folder, "--without", trajectory_id)
    assert without["left_out"] == [trajectory_id]
    assert without["distance"]["policy.0.weight"] > 0.0
