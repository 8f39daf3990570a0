"""Environments that raise, return NaN or hang cost what they touch, and the cause is on the screen.

Throughput beside a healthy run is measured by hand; here the run goes on, its accounting balances, and it says why.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, Run
from tests.support.faulty_envs import HANG_FILE_VARIABLE, HANGS, MODULE, NOT_FINITE, RAISES

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

Start = Callable[..., Run]
CARTPOLE = str(ROOT / "runs" / "cartpole.yaml")


def own(env: str, *settings: str) -> list[str]:
    """Arguments of a run of an environment of one's own."""
    chosen = (f'workload.env="{env}"', "policy.input_scale=[]", *settings)
    return [CARTPOLE, "--until", "", *(word for setting in chosen for word in ("--set", setting))]


def trained(run: Run, *, versions: int) -> None:
    run.until(lambda: len(run.steps()) >= versions, timeout_s=200.0, what=f"{versions} versions")


def ended(run: Run) -> tuple[dict[str, Any], str]:
    """The summary after an interruption, and what the screen and ``explain`` say."""
    run.process.terminate()
    _, summary = run.wait(timeout_s=120.0)
    assert summary["audit"]["balanced"], summary["audit_line"]
    explain = subprocess.run(
        [sys.executable, "-m", "tidegate.cli.main", "explain", "--dir", str(run.folder)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return summary, f"{run.output.read_text()}\n{' '.join(explain.stdout.split())}"


@pytest.mark.extended
def test_copies_that_raise_cost_their_episodes_and_no_process(start: Start) -> None:
    run = start(*own(RAISES, "workload.env_kwargs.period=500"))
    trained(run, versions=40)
    summary, screen = ended(run)
    assert summary["restarts"] == {}
    assert summary["values"]["environment_faults.raised_total"] > 10
    assert "raised in step: ValueError('the simulator diverged') at faulty_envs.py:" in screen
    assert "raised" in screen.rpartition("faults of environments:")[2]


@pytest.mark.extended
def test_copy_that_observes_nan_costs_its_column(start: Start) -> None:
    run = start(*own(NOT_FINITE))
    trained(run, versions=40)
    summary, screen = ended(run)
    assert summary["restarts"] == {}
    # It is left out for longer and longer: each actor makes a few copies again, and not one a step.
    assert 4 < summary["values"]["environment_faults.not_finite_total"] < 60
    assert "Copy 0 of" in screen
    assert "returned a number that is not finite from step: observations[1] is nan" in screen


def test_actor_whose_environment_hangs_is_replaced_and_named(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HANG_FILE_VARIABLE, str(tmp_path / "hangs"))
    run = start(*own(HANGS, "workload.env_kwargs.after=200", "workload.step_timeout_s=3"))
    run.until(lambda: "does not return from step" in run.output.read_text(), timeout_s=200.0, what="cause")
    before = len(run.steps())
    trained(run, versions=before + 20)
    summary, screen = ended(run)
    assert sum(count for name, count in summary["restarts"].items() if name.startswith("actor")) == 1
    assert "1 hung" in screen
    assert f"of '{HANGS}' does not return from step: 3 s, in step" in screen


@pytest.mark.parametrize("max_running", [2, pytest.param(6, marks=pytest.mark.extended)])
def test_environment_that_only_fails_ends_the_run_with_its_cause(start: Start, max_running: int) -> None:
    """However few tasks there are: each crash costs all that the actor held a delivery."""
    room = f"max_running={max_running}"
    run = start(*own(RAISES, "workload.env_kwargs.period=2", "actor.replicas=1", room))
    code, summary = run.wait(timeout_s=300.0)
    assert code == 1
    assert "keeps failing" in summary["problem"]
    assert "the simulator diverged" in summary["problem"]
    assert summary["audit"]["balanced"], summary["audit_line"]


def test_tasks_that_every_actor_refuses_end_the_run_with_the_reason(start: Start) -> None:
    run = start(*own(f"{MODULE}:OnlyDescribed-v0"))
    code, summary = run.wait(timeout_s=200.0)
    assert code == 1
    assert summary["problem"].startswith("Every actor refuses its tasks")
    assert "needs a display" in summary["problem"]


def test_one_actor_at_lag_0_repeats_its_run(start: Start) -> None:
    found: list[list[dict[str, Any]]] = []
    for _ in range(2):
        run = start(
            CARTPOLE,
            "--until",
            "version_step>=8",
            "--set",
            "actor.replicas=1",
            "--set",
            "staleness.max_lag=0",
        )
        _, summary = run.wait(timeout_s=200.0)
        assert summary["reached"], summary["problem"]
        found.append(
            [
                {name: value for name, value in step.items() if name != "at_s" and not name.endswith("_s")}
                for step in run.steps()[:8]
            ]
        )
    first, second = found
    # A lineage has a random name of its own.
    assert [{**step, "lineage": ""} for step in first] == [{**step, "lineage": ""} for step in second]
