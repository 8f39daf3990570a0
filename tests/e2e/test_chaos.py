"""Deaths and hangs that overlap, so that who comes back does not find the others well: the books balance."""

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.e2e.conftest import Run
from tests.e2e.killing import VICTIMS, assert_books_balance

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(600)]

SEED = 1
MAX_LAG = 2
ROUNDS = 3
# As long as a process that swaps, or a node that stalls; calls to it run into their deadlines.
HANG_S = (0.5, 4.0)
HANG_SHARE = 0.3
CALM_S = (0.2, 2.5)
ALIVE_TIMEOUT_S = 120.0


def hang(pid: int, *, for_s: float) -> None:
    """Stop a process as it stands, and let it go on."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(for_s)
    os.kill(pid, signal.SIGCONT)


def living(run: Run, victim: str, *, killed: set[int]) -> int:
    """The process of an instance, once it has one that was not killed before."""
    run.until(
        lambda: run.pid(victim) not in (None, *killed), timeout_s=ALIVE_TIMEOUT_S, what=f"a living {victim}"
    )
    pid = run.pid(victim)
    assert pid is not None
    return pid


def test_books_balance_when_processes_die_and_hang_before_the_last_one_is_back(
    start: Callable[..., Run],
) -> None:
    rng = random.Random(SEED)
    victims = [victim for _ in range(ROUNDS) for victim in rng.sample(VICTIMS, len(VICTIMS))]
    hangs_s = [rng.uniform(*HANG_S) if rng.random() < HANG_SHARE else 0.0 for _ in victims]
    run = start(
        "runs/cartpole.yaml",
        *("--until", f"mean_return>=475 and restarts_total>={hangs_s.count(0.0)}", "--for", "500s"),
        *("--set", f"staleness.max_lag={MAX_LAG}", "--set", f"seed={SEED}"),
    )
    run.until(lambda: len(run.steps()) >= 10, timeout_s=60, what="training")
    killed: set[int] = set()
    for victim, hang_s in zip(victims, hangs_s, strict=True):
        pid = living(run, victim, killed=killed)
        if hang_s:
            hang(pid, for_s=hang_s)
        else:
            run.kill(victim)
            killed.add(pid)
        time.sleep(rng.uniform(*CALM_S))
    code, summary = run.wait(timeout_s=400)
    assert code == 0, run.tail()
    assert_books_balance(summary["audit"], max_lag=MAX_LAG)
