"""``kill -9`` of the processes of a run, the recovery, and the accounting afterwards."""

import shutil
import sys
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import Run
from tidegate.launch.fork_server.kinds import LIGHT, TORCH
from tidegate.launch.live_run import BROKER
from tidegate.launch.services import REQUIRED, SERVICES, instances

# Every process of a run of one actor and one environment worker, in the order in which tests kill them. The fork
# servers come first, so that what is killed afterwards is started by those that replaced them.
VICTIMS = (
    LIGHT,
    TORCH,
    *(
        instance
        for service in sorted(REQUIRED, key=lambda service: SERVICES[service].stop_order)
        for instance in instances(service, replicas=1)
    ),
    BROKER,
)
RECOVERY_TIMEOUT_S = 180.0
STEPS_AFTER_A_KILL = 5


def kill_and_recover(run: Run, victim: str) -> tuple[float, float]:
    """Seconds until the victim has a new process, and from the kill until more learner steps were made."""
    before = run.kill(victim)
    back_s = run.until(
        lambda: run.pid(victim) not in (None, before), timeout_s=RECOVERY_TIMEOUT_S, what=f"new {victim}"
    )
    seen = len(run.steps())
    trains_s = run.until(
        lambda: len(run.steps()) >= seen + STEPS_AFTER_A_KILL,
        timeout_s=RECOVERY_TIMEOUT_S,
        what=f"training after the death of {victim}",
    )
    return back_s, back_s + trains_s


def kill_and_print(run: Run, victim: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``kill_and_recover``, with a line that shows what it took."""
    back_s, trains_s = kill_and_recover(run, victim)
    with capsys.disabled():
        sys.stdout.write(f"\n  kill -9 {victim}: back after {back_s:.1f} s, trains on after {trains_s:.1f} s")


def lose_machine(run: Run) -> None:
    """Kill the supervisor, with which every process of the run ends, and remove its folder."""
    processes = [psutil.Process(process["pid"]) for process in run.processes().values()]
    run.process.kill()
    run.process.wait(timeout=60)
    psutil.wait_procs(processes, timeout=60)
    shutil.rmtree(run.folder)


def end_after_more_steps(run: Run, *, steps: int, max_lag: int) -> None:
    """A resumed run trains on and ends with balanced accounting."""
    before = len(run.steps())
    run.until(lambda: len(run.steps()) >= before + steps, timeout_s=300, what="training again")
    run.process.terminate()
    _, summary = run.wait(timeout_s=180)
    assert_accounting_balances(summary["audit"], max_lag=max_lag)


def assert_accounting_balances(audit: dict[str, Any], *, max_lag: int) -> None:
    """No trajectory was lost, trained twice or trained too stale; the store holds those in flight for a resumed run."""
    assert audit["balanced"], audit
    assert audit["trained_twice"] == 0, audit
    assert audit["max_lag_trained"] <= max_lag, audit
    assert audit["awaiting"] == 0, audit
