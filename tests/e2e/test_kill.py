"""Any process may die at any time: the run goes on, and the books balance."""

import sys
from collections.abc import Callable

import pytest

from tests.e2e.conftest import Run

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(600)]

VICTIMS = (
    "actor-0",
    "environment-0",
    "trajectory_store",
    "learner",
    "weight_distribution",
    "task_queue",
    "admission",
    "nats-server",
)
RECOVERY_TIMEOUT_S = 90.0


def test_a_run_survives_kill_nine_of_every_process_in_turn(
    start: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(
        "runs/cartpole.yaml",
        "--until",
        f"mean_return>=475 and restarts_total>={len(VICTIMS)}",
        "--for",
        "500s",
        "--set",
        "staleness.max_lag=4",
    )
    run.until(lambda: len(run.steps()) >= 10, timeout_s=60, what="training")
    for victim in VICTIMS:
        before = run.pid(victim)
        run.kill(victim)
        back_s = run.until(
            lambda victim=victim, before=before: run.pid(victim) not in (None, before),
            timeout_s=RECOVERY_TIMEOUT_S,
            what=f"new {victim}",
        )
        seen = len(run.steps())
        trains_s = run.until(
            lambda seen=seen: len(run.steps()) >= seen + 5 or run.process.poll() is not None,
            timeout_s=RECOVERY_TIMEOUT_S,
            what=f"training after the death of {victim}",
        )
        with capsys.disabled():
            sys.stdout.write(f"
  kill -9 {victim}: back after {back_s:.1f} s, five more steps {trains_s:.1f} s later")
    code, summary = run.wait(timeout_s=400)
    audit = summary["audit"]
    assert code == 0, run.tail()
    assert summary["reached"]
    assert audit["balanced"], audit
    assert audit["trained_twice"] == 0
    assert audit["max_lag_trained"] <= 4
    assert audit["in_flight"] == 0
    assert set(summary["restarts"]) >= set(VICTIMS)
