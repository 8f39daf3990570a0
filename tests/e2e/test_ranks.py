"""A learner of two ranks: nothing outside of the machine reaches it; when one rank dies both restart."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Run
from tidegate.launch.fork_server.kinds import LIGHT

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(600)]

RECOVERY_TIMEOUT_S = 150.0
EVERY = 5
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def rank_pid(run: Run, rank: int) -> int | None:
    """The process of one rank, None while there is none."""
    launcher = run.pid("learner")
    if launcher is None:
        return None
    try:
        for process in psutil.Process(launcher).children():
            if f"(rank {rank} of" in " ".join(process.cmdline()):
                return process.pid
    except psutil.Error:
        return None
    return None


def log_of(run: Run) -> str:
    return (Path(run.folder) / "logs" / "learner.log").read_text()


def listeners(pid: int) -> dict[str, list[str]]:
    """The addresses at which a process and its descendants accept connections, by the process' title."""
    root = psutil.Process(pid)
    found: dict[str, list[str]] = {}
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline())[:80]
            found[f"{process.pid} {title}"] = [
                connection.laddr.ip
                for connection in process.net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            ]
    return found


def trains_on(run: Run, *, after: str) -> None:
    """A new lineage was opened and steps were made in it."""
    seen, lineage = len(run.steps()), run.steps()[-1]["lineage"]

    def goes_on() -> bool:
        steps = run.steps()
        return len(steps) >= seen + 3 and steps[-1]["lineage"] != lineage

    run.until(goes_on, timeout_s=RECOVERY_TIMEOUT_S, what=f"training after {after}")


def test_a_rank_that_is_stopped_or_killed_costs_no_trajectory(start: Callable[..., Run]) -> None:
    # The run ends at a third kill, of a process that it needs no more.
    target = "restarts_total>=3"
    run = start(
        *("runs/cartpole.yaml", "--until", target, "--for", "500s"),
        *("--set", "learner.ranks=2", "--set", f"learner.checkpoint_every_steps={EVERY}"),
    )
    run.until_trains(2 * EVERY)
    pid = rank_pid(run, 1)
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    trains_on(run, after="rank 1 was told to stop")
    log = log_of(run)
    assert "rank_leaving" in log
    assert "RankLostError" not in log, "rank 0 hears of it and ends in good order"
    pid = rank_pid(run, 1)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    trains_on(run, after="rank 1 was killed")
    assert "lost rank " in log_of(run)
    run.kill(LIGHT)
    code, summary = run.wait(timeout_s=400)
    audit = summary["audit"]
    assert code == 0, run.tail()
    assert audit["balanced"], audit
    assert audit["trained_twice"] == 0
    assert summary["restarts"]["learner"] >= 2


def test_no_process_of_a_run_with_ranks_listens_outside_of_the_machine(start: Callable[..., Run]) -> None:
    run = start("runs/cartpole.yaml", "--for", "500s", "--set", "learner.ranks=2")
    run.until(lambda: len(run.steps()) >= 2, timeout_s=300, what="training")
    addresses = listeners(run.process.pid)
    assert sum(map(len, addresses.values())) > 5, "the services listen"
    outside = {name: found for name, found in addresses.items() if {*found} - LOOPBACK}
    assert not outside
