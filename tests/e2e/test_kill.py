"""A run survives the death of any process, and its accounting balances."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Run
from tests.e2e.killing import STEPS_AFTER_A_KILL, VICTIMS, assert_accounting_balances, kill_and_print
from tidegate.core.deliveries import DELIVERIES_UNTIL_FAILED
from tidegate.launch.fork_server.kinds import LIGHT

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(1500)]

MAX_LAG = 4
# Recomputing 400 updates took 220 s on two cores that did much else.
REPLAY_TIMEOUT_S = 900.0


def test_a_run_survives_kill_nine_of_every_process_in_turn(
    start: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    # One more than the deaths whose recovery is looked at: the run ends at the kill of a process that it needs no more.
    target = f"mean_return>=475 and restarts_total>={len(VICTIMS) + 1}"
    run = start(
        *("runs/cartpole.yaml", "--until", target, "--for", "500s", "--set", f"staleness.max_lag={MAX_LAG}"),
        # A checkpoint lets the payloads go that only a killed store's files hold.
        *("--set", "trajectory_store.replayable_bytes_max=1000000000"),
    )
    run.until_trains(10)
    for victim in VICTIMS:
        kill_and_print(run, victim, capsys)
    run.kill(LIGHT)
    code, summary = run.wait(timeout_s=400)
    assert code == 0, run.tail()
    assert summary["reached"]
    assert_accounting_balances(summary["audit"], max_lag=MAX_LAG)
    assert set(summary["restarts"]) >= set(VICTIMS)
    assert_every_update_is_recomputed_bit_for_bit(run.folder)


def assert_every_update_is_recomputed_bit_for_bit(folder: Path) -> None:
    command = [sys.executable, "-m", "tidegate.cli.main", "replay", "--from", "first", "--json"]
    done = subprocess.run(
        [*command, "--dir", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=REPLAY_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    replayed = json.loads(done.stdout)
    assert replayed["num_updates"] >= STEPS_AFTER_A_KILL * len(VICTIMS)
    assert replayed["num_versions"] >= 1
    assert replayed["num_checkpoints"] >= 1
    assert replayed["differing"] == {}


@pytest.mark.extended
def test_training_goes_on_however_often_the_actor_with_all_tasks_is_killed(
    start: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = (f"staleness.max_lag={MAX_LAG}", "actor.replicas=1", "max_running=2", "actor.ack_wait_s=2")
    run = start(
        "runs/cartpole.yaml", "--until", "", *(word for setting in settings for word in ("--set", setting))
    )
    run.until_trains(10)
    for _ in range(DELIVERIES_UNTIL_FAILED + 2):
        kill_and_print(run, "actor-0", capsys)
    run.process.terminate()
    _, summary = run.wait(timeout_s=120)
    assert_accounting_balances(summary["audit"], max_lag=MAX_LAG)
    assert summary["restarts"] == {"actor-0": DELIVERIES_UNTIL_FAILED + 2}
