"""A run with replay survives the death of the processes that count its uses, and both entries of its audit balance."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, Run
from tests.e2e.killing import assert_accounting_balances, kill_and_print
from tidegate.launch.fork_server.kinds import LIGHT

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.extended, pytest.mark.timeout(600)]

VICTIMS = ("learner", "trajectory_store", "actor-0", "task_queue")
MAX_LAG = 100_000


def audited(run: Run) -> dict[str, Any]:
    """What `tidegate audit` says of a run, live or ended."""
    command = [sys.executable, "-m", "tidegate.cli.main", "audit", "--json", "--dir", str(run.folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    return json.loads(done.stdout)


def test_a_run_with_replay_survives_kill_nine_and_every_use_is_counted(
    start: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = (
        f"staleness.max_lag={MAX_LAG}",
        "trajectory_store.replay.min_fill=1000",
        "trajectory_store.replay.capacity=8000",
        "trajectory_store.replay.uses_max=8",
        "trajectory_store.replay.samples_per_insert=2",
        "learner.checkpoint_every_steps=5",
    )
    # One more than the deaths whose recovery is looked at: the run ends at the kill of a process that it needs no more.
    target = f"restarts_total>={len(VICTIMS) + 1} and version_step>=120"
    overrides = [part for setting in settings for part in ("--set", setting)]
    run = start("runs/apex.yaml", "--until", target, "--for", "500s", *overrides)
    run.until_trains(12)
    for victim in VICTIMS:
        kill_and_print(run, victim, capsys)
        audit = audited(run)
        assert audit["balanced"], audit["problems"]
    run.kill(LIGHT)
    code, summary = run.wait(timeout_s=400)
    assert code == 0, run.tail()
    assert summary["reached"]
    assert_accounting_balances(summary["audit"], max_lag=MAX_LAG)
    replay, learner = summary["audit"]["replay"], summary["audit"]["learner"]
    assert replay["sampled"] == replay["recounted"] > 0
    assert replay["sampled_at"] == learner["sampled"] > 0
    assert (replay["overused"], replay["lost_updates"]) == (0, 0)
