"""A run whose actors hold no weights survives the deaths of the service that acts for them."""

from collections.abc import Callable

import pytest

from tests.e2e.conftest import Run
from tests.e2e.killing import assert_accounting_balances, kill_and_print
from tidegate.launch.fork_server.kinds import LIGHT

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(400)]

MAX_LAG = 2
DEATHS = 3


def test_a_run_survives_kill_nine_of_its_inference_service(
    start: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    # One more than the deaths whose recovery is looked at: the run ends at the kill of a process that it needs no more.
    target = f"restarts_total>={DEATHS + 2}"
    run = start("runs/seed.yaml", "--until", target, "--for", "300s", "--set", "actor.replicas=1")
    run.until_trains(10)
    for victim in (*["inference"] * DEATHS, "actor-0"):
        kill_and_print(run, victim, capsys)
    run.kill(LIGHT)
    code, summary = run.wait(timeout_s=300)
    assert code == 0, run.tail()
    assert summary["reached"]
    assert_accounting_balances(summary["audit"], max_lag=MAX_LAG)
    assert summary["restarts"]["inference"] == DEATHS
    # The actor waits: its segment continues at the next process, and its own process is none the worse.
    assert summary["restarts"]["actor-0"] == 1
