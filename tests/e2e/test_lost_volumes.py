"""A run whose task queue and trajectory store lose their folders goes on from PostgreSQL, and nothing is lost."""

import shutil
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.conftest import Run
from tests.e2e.killing import RECOVERY_TIMEOUT_S, STEPS_AFTER_A_KILL, assert_accounting_balances
from tests.support.postgres import PostgresServer, find_programs, running_server
from tidegate.runtime.replication.config import URI_VARIABLE

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kill,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_programs() is None, reason="there is no PostgreSQL here (Debian: postgresql)"),
]

MAX_LAG = 4
STORE, QUEUE = "trajectory_store", "task_queue"


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """A server, whose address the runs of the test inherit."""
    with running_server() as server:
        monkeypatch.setenv(URI_VARIABLE, server.uri)
        yield server


def lose(run: Run, *services: str) -> None:
    """Kill services and remove their folders, with not a moment between for them to end in good order."""
    pids = [run.pid(service) for service in services]
    assert None not in pids
    for pid in pids:
        assert run.send(pid or 0, signal.SIGSTOP)
    for service in services:
        shutil.rmtree(run.folder / service)
    for pid in pids:
        assert run.send(pid or 0, signal.SIGKILL)


def trains_on(run: Run, *, after: str) -> float:
    """Seconds until more learner steps were made."""
    seen = len(run.steps())
    return run.until(
        lambda: len(run.steps()) >= seen + STEPS_AFTER_A_KILL,
        timeout_s=RECOVERY_TIMEOUT_S,
        what=f"training after {after}",
    )


def end(run: Run, *, failed_max: int = 0) -> None:
    """End the run, whose accounting must balance, also in what was replicated."""
    run.process.terminate()
    _, summary = run.wait(timeout_s=180)
    assert_accounting_balances(summary["audit"], max_lag=MAX_LAG)
    assert summary["audit"]["dropped"].get("failed", 0) <= failed_max, summary["audit"]
    assert "balanced" in run.tidegate("audit", "--verify")


def test_run_goes_on_from_postgres_when_volumes_are_lost(
    start: Callable[..., Run], postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(
        *("runs/cartpole.yaml", "--until", "", "--for", "600s", "--set", f"staleness.max_lag={MAX_LAG}"),
        *("--set", "postgres={}"),
    )
    run.until_trains(10)
    for services in ((STORE,), (QUEUE,), (STORE, QUEUE)):
        what = "the loss of " + " and ".join(services)
        lose(run, *services)
        seconds = trains_on(run, after=what)
        with capsys.disabled():
            sys.stdout.write(f"\n  {what}: {STEPS_AFTER_A_KILL} more steps after {seconds:.1f} s")
    end(run)


@pytest.mark.extended
def test_run_waits_for_postgres_and_loses_nothing(
    start: Callable[..., Run], postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    run = start(
        *("runs/cartpole.yaml", "--until", "", "--for", "600s", "--set", f"staleness.max_lag={MAX_LAG}"),
        *("--set", "postgres={}"),
    )
    run.until_trains(10)
    postgres.kill()
    run.until(lambda: "replica_away" in run.log(STORE), timeout_s=60, what="a replica that is away")
    said = "trajectory_store holds its answers back: PostgreSQL does not answer"
    run.until(lambda: said in " ".join(run.tidegate("explain").split()), timeout_s=60, what="an explanation")
    postgres.start()
    killed_s = trains_on(run, after="the death of PostgreSQL")
    postgres.pause()
    run.until(lambda: run.log(STORE).count("replica_away") > 1, timeout_s=120, what="a replica that hangs")
    postgres.go_on()
    paused_s = trains_on(run, after="a pause of PostgreSQL")
    lose(run, STORE, QUEUE)
    trains_on(run, after="a loss after both")
    with capsys.disabled():
        sys.stdout.write(f"\n  five more steps after a kill {killed_s:.1f} s, after a pause {paused_s:.1f} s")
    end(run)


@pytest.mark.extended
@pytest.mark.parametrize("synchronous", [True, False], ids=["synchronous", "asynchronous"])
def test_run_goes_on_with_a_standby_that_is_promoted(
    start: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    synchronous: bool,
) -> None:
    with running_server() as primary, running_server(follows=primary) as standby:
        primary.await_standby(synchronous=synchronous)
        monkeypatch.setenv(URI_VARIABLE, primary.uri_with(standby))
        run = start(
            *("runs/cartpole.yaml", "--until", "", "--for", "600s", "--set", f"staleness.max_lag={MAX_LAG}"),
            *("--set", "postgres={}"),
        )
        run.until_trains(10)
        if not synchronous:  # what is acknowledged from now on is lost with the primary
            standby.stop_following()
            trains_on(run, after="the standby stopped following")
        primary.kill()
        standby.promote()
        seconds = trains_on(run, after="the promotion")
        assert ("replica_behind" in run.log(STORE)) is not synchronous
        with capsys.disabled():
            sys.stdout.write(f"\n  {STEPS_AFTER_A_KILL} more steps {seconds:.1f} s after the promotion")
        lose(run, STORE, QUEUE)
        trains_on(run, after="a loss of both after the promotion")
        end(run)


@pytest.mark.extended
def test_store_without_replicated_payloads_drops_what_waited_and_nothing_else(
    start: Callable[..., Run], postgres: PostgresServer
) -> None:
    run = start(
        *("runs/cartpole.yaml", "--until", "", "--for", "600s", "--set", f"staleness.max_lag={MAX_LAG}"),
        *("--set", "postgres={payloads: false}"),
    )
    run.until_trains(10)
    lose(run, STORE)
    trains_on(run, after="the loss of the store")
    end(run, failed_max=MAX_LAG + 2)  # a batch is one segment here, and one is leased
