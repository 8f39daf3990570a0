"""A process that stands still, or finds no descriptor or no memory: the run trains on and balances."""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Run
from tests.e2e.killing import RECOVERY_TIMEOUT_S, VICTIMS, assert_accounting_balances
from tidegate.launch.fork_server.kinds import PRELOADED
from tidegate.launch.platform import HELPERS

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
CGROUPS = Path("/sys/fs/cgroup")
FAULT_S = 30.0


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group whose processes are killed for the next page that they need."""
    is_second = (CGROUPS / "cgroup.controllers").exists()
    parent, limit = (CGROUPS, "memory.max") if is_second else (CGROUPS / "memory", "memory.limit_in_bytes")
    group = parent / f"tidegate-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text("0")
    except OSError as error:
        pytest.skip(f"no control group limits memory here (this needs root): {error}")
    yield group
    group.rmdir()


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


@contextmanager
def without_memory(process: psutil.Process) -> Generator[None]:
    """No memory beyond what it has: what it has freed it can use again, a new mapping fails."""
    soft, hard = process.rlimit(resource.RLIMIT_AS)
    process.rlimit(resource.RLIMIT_AS, (1, hard))
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            process.rlimit(resource.RLIMIT_AS, (soft, hard))


FAULTS: dict[str, Callable[[psutil.Process], AbstractContextManager[None]]] = {
    "stopped": stopped,
    "no descriptors": without_descriptors,
    "no memory": without_memory,
}
# The service that acts for all actors is in some runs only.
VICTIMS_OF = {"cartpole": VICTIMS, "seed": ("inference",)}


@pytest.mark.parametrize("name", VICTIMS_OF)
@pytest.mark.parametrize("fault", FAULTS)
def test_run_trains_on_after_each_process_had_a_fault_for_30_s(
    start: Callable[..., Run], capsys: pytest.CaptureFixture[str], fault: str, name: str
) -> None:
    run = begin(start, name)
    for victim in VICTIMS_OF[name]:
        pid = run.pid(victim)
        assert pid is not None, f"{victim} does not run"
        before = len(run.steps())
        with FAULTS[fault](psutil.Process(pid)):
            time.sleep(FAULT_S)
        during = len(run.steps()) - before
        trains_s = until_trains_on(run, seen=before + during, what=f"training after {victim} was {fault}")
        until_reports(run, victim)
        outcome = "the same process" if run.pid(victim) == pid else "a new process"
        with capsys.disabled():
            sys.stdout.write(
                f"\n  {victim} {fault}: {during} steps meanwhile, trains on after {trains_s:.1f} s, {outcome}"
            )
    assert_balances_at_its_end(run)


@pytest.mark.parametrize("name", VICTIMS_OF)
def test_run_trains_on_after_the_kernel_killed_each_process_for_its_memory(
    memory_group: Path, start: Callable[..., Run], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run = begin(start, name)
    # A fork server that is not asked needs no page.
    for victim in [victim for victim in VICTIMS_OF[name] if victim not in PRELOADED]:
        pid = run.pid(victim)
        assert pid is not None, f"{victim} does not run"
        (memory_group / "cgroup.procs").write_text(str(pid))
        killed_s = run.until(
            lambda victim=victim, pid=pid: run.pid(victim) not in (None, pid),
            timeout_s=RECOVERY_TIMEOUT_S,
            what=f"new {victim}",
        )
        trains_s = until_trains_on(run, seen=len(run.steps()), what=f"training after {victim} was killed")
        until_reports(run, victim)
        with capsys.disabled():
            sys.stdout.write(
                f"\n  {victim} without memory: killed and back after {killed_s:.1f} s, trains on"
                f" {trains_s:.1f} s later"
            )
    assert_balances_at_its_end(run)


def begin(start: Callable[..., Run], name: str) -> Run:
    """A run of one actor that trains: an actor that does nothing is no other's work."""
    run = start(
        *(f"runs/{name}.yaml", "--until", ""),
        *("--set", f"staleness.max_lag={MAX_LAG}", "--set", "actor.replicas=1"),
    )
    run.until(lambda: len(run.steps()) >= 10, timeout_s=300, what="training")
    return run


def until_trains_on(run: Run, *, seen: int, what: str) -> float:
    """Wait for five more steps; returns the seconds they took."""
    return run.until(lambda: len(run.steps()) >= seen + 5, timeout_s=RECOVERY_TIMEOUT_S, what=what)


def until_reports(run: Run, victim: str) -> None:
    """Wait until a service is ready and reports; training alone does not need each of them all the time."""
    if victim in HELPERS:
        return
    now_s = time.time()

    def is_reported() -> bool:
        instance = run.status()["instances"].get(victim)
        return instance is not None and instance["state"] == "ready" and instance["at_s"] > now_s

    run.until(is_reported, timeout_s=RECOVERY_TIMEOUT_S, what=f"statistics of {victim}")


def assert_balances_at_its_end(run: Run) -> None:
    os.kill(run.process.pid, signal.SIGTERM)
    _, summary = run.wait(timeout_s=180)
    assert_accounting_balances(summary["audit"], max_lag=MAX_LAG)
