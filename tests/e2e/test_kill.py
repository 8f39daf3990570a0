"""A run survives the death of any process, and its accounting balances."""

from collections.abc import Callable

import pytest

from tests.e2e.conftest import Run
from tests.e2e.killing import VICTIMS, assert_accounting_balances, kill_and_print

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(600)]

MAX_LAG = 4
# Beyond the last kill, so that the run does not reach its target before the last recovery was seen.
VERSIONS = 400


def test_a_run_survives_kill_nine_of_every_process_in_turn(
    start: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    target = f"mean_return>=475 and restarts_total>={len(VICTIMS)} and version_step>={VERSIONS}"
    run = start(
        *("runs/cartpole.yaml", "--until", target, "--for", "500s", "--set", f"staleness.max_lag={MAX_LAG}")
    )
    run.until(lambda: len(run.steps()) >= 10, timeout_s=60, what="training")
    for victim in VICTIMS:
        kill_and_print(run, victim, capsys)
    code, summary = run.wait(timeout_s=400)
    assert code == 0, run.tail()
    assert summary["reached"]
    assert_accounting_balances(summary["audit"], max_lag=MAX_LAG)
    assert set(summary["restarts"]) >= set(VICTIMS)
