import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tidegate.cli.throttle import slow_down


@pytest.fixture
def busy() -> Iterator[psutil.Process]:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield psutil.Process(child.pid)
    child.kill()
    child.wait()


def cpu_s(process: psutil.Process) -> float:
    """CPU time in nanoseconds' resolution where the system has it: a loaded machine gives little more than a tick."""
    exact = Path(f"/proc/{process.pid}/schedstat")
    return int(exact.read_text().split()[0]) / 1e9 if exact.exists() else sum(process.cpu_times()[:2])


def test_a_slowed_process_gets_its_share_and_is_let_go(busy: psutil.Process) -> None:
    before_s, started_s = cpu_s(busy), time.monotonic()
    slow_down(lambda: [busy.pid], factor=10.0, duration_s=2.0)
    used_s, elapsed_s = cpu_s(busy) - before_s, time.monotonic() - started_s
    # A tenth of the time, with much room for what a loaded machine does to sleeps; unslowed it would be nearly all.
    assert 0.0 < used_s < 0.5 * elapsed_s
    assert busy.status() != psutil.STATUS_STOPPED


def test_a_process_that_ends_meanwhile_is_no_error(busy: psutil.Process) -> None:
    threading.Timer(0.3, busy.kill).start()
    started_s = time.monotonic()
    slow_down(lambda: [busy.pid], factor=2.0, duration_s=0.8)
    assert time.monotonic() - started_s >= 0.8


def test_an_interrupted_throttle_restores_full_speed(busy: psutil.Process) -> None:
    reads = iter([[busy.pid]])

    def find() -> list[int]:
        try:
            return next(reads)
        except StopIteration:
            raise KeyboardInterrupt from None

    with pytest.raises(KeyboardInterrupt):
        slow_down(find, factor=50.0, duration_s=30.0)
    assert busy.status() != psutil.STATUS_STOPPED
