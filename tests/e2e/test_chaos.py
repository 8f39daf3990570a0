"""Chaos runs: processes die and hang before the previous one has recovered, and the accounting balances."""

import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.e2e.conftest import ROOT, Run
from tests.e2e.killing import VICTIMS, assert_accounting_balances
from tidegate.launch.run_file import read_run_file

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(600)]

# Run files whose trajectories are gradients, or are trained on more than once.
CLASSIC = ("a3c", "apex", "r2d2", "pendulum-sac")
# As long as a process that swaps, or a node that stalls; calls to it run into their deadlines.
HANG_S = (0.5, 4.0)
HANG_SHARE = 0.3
CALM_S = (0.2, 2.5)
ALIVE_TIMEOUT_S = 120.0
# A kill costs others their process as well, rarely; those restarts must not end the run before the last of ours.
SPARE_RESTARTS = 3


def hang(run: Run, pid: int, *, for_s: float) -> None:
    """Stop a process for a while, as a stalled node does."""
    if run.send(pid, signal.SIGSTOP):
        time.sleep(for_s)
        run.send(pid, signal.SIGCONT)


def live_pid(run: Run, victim: str, *, killed: int | None) -> int:
    """The process of an instance, once it has one after the ``killed`` one."""
    run.until(
        lambda: run.pid(victim) not in (None, killed),
        timeout_s=ALIVE_TIMEOUT_S,
        what=f"a new process of {victim}",
    )
    pid = run.pid(victim)
    assert pid is not None
    return pid


def storm(start: Callable[..., Run], name: str, *, rounds: int, seed: int, until: str = "") -> None:
    """Kill or hang every process ``rounds`` times in a random order, then an actor until the run ends."""
    rng = random.Random(seed)
    victims = [victim for _ in range(rounds) for victim in rng.sample(VICTIMS, len(VICTIMS))]
    hangs_s = [rng.uniform(*HANG_S) if rng.random() < HANG_SHARE else 0.0 for _ in victims]
    run_file = ROOT / "runs" / f"{name}.yaml"
    restarts = f"restarts_total>={hangs_s.count(0.0) + SPARE_RESTARTS}"
    run = start(
        str(run_file),
        *("--until", f"{until} and {restarts}" if until else restarts, "--for", "500s"),
        *("--set", f"seed={seed}"),
    )
    run.until_trains(10)
    killed: dict[str, int] = {}
    for victim, hang_s in zip(victims, hangs_s, strict=True):
        pid = live_pid(run, victim, killed=killed.get(victim))
        if hang_s:
            hang(run, pid, for_s=hang_s)
        else:
            killed[victim] = run.kill(victim)
        time.sleep(rng.uniform(*CALM_S))
    num_spare = 0
    while num_spare < SPARE_RESTARTS and run.process.poll() is None:
        pid = run.pid("actor-0")
        if pid not in (None, killed.get("actor-0")) and run.send(pid, signal.SIGKILL):
            num_spare, killed["actor-0"] = num_spare + 1, pid
        time.sleep(CALM_S[0])
    code, summary = run.wait(timeout_s=400)
    assert code == 0, run.tail()
    assert_accounting_balances(summary["audit"], max_lag=read_run_file(run_file, []).file.staleness.max_lag)


@pytest.mark.parametrize(
    ("rounds", "seed"),
    [(1, 1), *(pytest.param(3, seed, marks=pytest.mark.extended) for seed in (1, 2, 3))],
)
def test_accounting_balances_when_processes_die_and_hang_before_others_have_recovered(
    start: Callable[..., Run], rounds: int, seed: int
) -> None:
    storm(start, "cartpole", rounds=rounds, seed=seed, until="mean_return>=475")


@pytest.mark.extended
@pytest.mark.parametrize("name", CLASSIC)
def test_accounting_of_every_classic_system_balances_through_a_storm_of_kills(
    start: Callable[..., Run], name: str
) -> None:
    storm(start, name, rounds=2, seed=1)
