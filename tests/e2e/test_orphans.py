"""A command that is killed leaves no process behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import ROOT, Run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the parent-death guard needs Linux"),
]

TIMEOUT_S = 300.0


def end_of(processes: list[psutil.Process]) -> None:
    _, left = psutil.wait_procs(processes, timeout=TIMEOUT_S)
    assert not left, [title_of(process) for process in left]


def title_of(process: psutil.Process) -> str:
    """Empty for one that has ended, waited for or not."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def services_of(root: psutil.Process) -> list[psutil.Process]:
    return [each for each in root.children(recursive=True) if title_of(each)]


@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_up_leaves_no_process(start: Callable[..., Run], ranks: int) -> None:
    run = start("runs/cartpole.yaml", "--for", "500s", "--set", f"learner.ranks={ranks}")
    run.until(lambda: len(run.steps()) >= 2, timeout_s=TIMEOUT_S, what="training")
    descendants = services_of(psutil.Process(run.process.pid))
    # Fork servers, broker, seven services of which the actor has two instances, and the ranks of the learner.
    assert len(descendants) >= 11 + (ranks if ranks > 1 else 0)
    run.process.kill()
    end_of(descendants)


def test_up_that_is_killed_while_it_starts_leaves_no_process(start: Callable[..., Run]) -> None:
    run = start("runs/cartpole.yaml", "--for", "500s")
    run.until(lambda: run.pid("nats-server") is not None, timeout_s=TIMEOUT_S, what="a broker")
    descendants = services_of(psutil.Process(run.process.pid))
    run.process.kill()
    end_of(descendants)


@pytest.fixture
def benchmark_of_cartpole(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    # A session of its own, because it is killed with nothing else.
    with (tmp_path / "out").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks", "cartpole", "--json", str(tmp_path / "bench.json")],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
        )
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ended_benchmark_leaves_no_platform(
    benchmark_of_cartpole: "subprocess.Popen[bytes]", number: signal.Signals
) -> None:
    root = psutil.Process(benchmark_of_cartpole.pid)
    descendants: list[psutil.Process] = []
    while not any("tidegate serve" in title_of(each) for each in descendants):
        assert benchmark_of_cartpole.poll() is None
        descendants = services_of(root)
        time.sleep(0.1)
    os.kill(benchmark_of_cartpole.pid, number)
    end_of(descendants)
