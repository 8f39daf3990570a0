"""A process that stands still, or finds no free descriptor, for a while: the run trains on and balances."""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress

import psutil
import pytest

from tests.e2e.conftest import Run
from tests.e2e.killing import RECOVERY_TIMEOUT_S, VICTIMS, assert_accounting_balances

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kill,
    pytest.mark.extended,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="limits of other processes are set on Linux only"
    ),
]

MAX_LAG = 4
FAULT_S = 30.0


@contextmanager
def stopped(process: psutil.Process) -> Generator[None]:
    """It stands still."""
    process.suspend()
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            process.resume()


@contextmanager
def without_descriptors(process: psutil.Process) -> Generator[None]:
    """No descriptor above those it has: what it opens or accepts fails with EMFILE."""
    soft, hard = process.rlimit(resource.RLIMIT_NOFILE)
    process.rlimit(resource.RLIMIT_NOFILE, (process.num_fds(), hard))
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            process.rlimit(resource.RLIMIT_NOFILE, (soft, hard))


FAULTS: dict[str, Callable[[psutil.Process], AbstractContextManager[None]]] = {
    "stopped": stopped,
    "no descriptors": without_descriptors,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_run_trains_on_after_each_process_had_a_fault_for_30_s(
    start: Callable[..., Run], capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    run = start("runs/cartpole.yaml", "--until", "", "--set", f"staleness.max_lag={MAX_LAG}")
    run.until(lambda: len(run.steps()) >= 10, timeout_s=300, what="training")
    for victim in VICTIMS:
        pid = run.pid(victim)
        assert pid is not None, f"{victim} does not run"
        before = len(run.steps())
        with FAULTS[fault](psutil.Process(pid)):
            time.sleep(FAULT_S)
        during = len(run.steps()) - before
        trains_s = run.until(
            lambda seen=before + during: len(run.steps()) >= seen + 5,
            timeout_s=RECOVERY_TIMEOUT_S,
            what=f"training after {victim} was {fault}",
        )
        outcome = "the same process" if run.pid(victim) == pid else "a new process"
        with capsys.disabled():
            sys.stdout.write(
                f"\n  {victim} {fault}: {during} steps meanwhile, trains on after {trains_s:.1f} s, {outcome}"
            )
    os.kill(run.process.pid, signal.SIGTERM)
    _, summary = run.wait(timeout_s=180)
    assert_accounting_balances(summary["audit"], max_lag=MAX_LAG)
