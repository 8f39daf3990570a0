"""Whole runs need no more at the broker than the table of permissions gives them."""

import signal
from collections.abc import Callable

import pytest

from tests.e2e.conftest import Run
from tests.support.broker import free_port

pytestmark = pytest.mark.e2e

UPDATES = 2
# For a machine that does much else.
TIMEOUT_S = 1200.0
SHORT_WARMUP = "learner.warmup.stop_at_solved=0.02"
# Each kind of work: segments, central inference, text in one turn, conversations whose partial rollouts are kept, and
# replay.
RUNS = {
    "cartpole": (),
    "seed": (),
    "arithmetic": (SHORT_WARMUP,),
    "calculator": (SHORT_WARMUP, "actor.keep_progress_s=0.1"),
    "apex": (),
}


@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.parametrize(
    "name",
    ["cartpole", *(pytest.param(name, marks=pytest.mark.extended) for name in RUNS if name != "cartpole")],
)
def test_broker_refuses_nothing_of_a_whole_run(name: str, start: Callable[..., Run]) -> None:
    # The receiver does not exist; the statistics of the broker are sampled all the same.
    telemetry = f"telemetry={{otlp_endpoint: '127.0.0.1:{free_port()}', metric_period_s: 0.5}}"
    settings = [part for each in (telemetry, *RUNS[name]) for part in ("--set", each)]
    run = start(f"runs/{name}.yaml", *settings)
    run.until(lambda: len(run.steps()) >= UPDATES, timeout_s=TIMEOUT_S, what="update")
    run.process.send_signal(signal.SIGTERM)
    run.wait(timeout_s=TIMEOUT_S)
    log = (run.folder / "logs" / "nats-server.log").read_text(encoding="utf-8")
    assert "Server is ready" in log
    assert [line for line in log.splitlines() if "iolation" in line] == []
