import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from tidegate.cli.throttle import slow_down


@pytest.fixture
def busy() -> Iterator[psutil.Process]:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield psutil.Process(child.pid)
    child.kill()
    child.wait()


def test_a_slowed_process_gets_its_share_and_is_let_go(busy: psutil.Process) -> None:
    before = sum(busy.cpu_times()[:2])
    slow_down(lambda: [busy.pid], factor=10.0, duration_s=2.0)
    used_s = sum(busy.cpu_times()[:2]) - before
    # A tenth of two seconds, with much room for what a loaded machine does to sleeps; unslowed it would be about two.
    assert 0.0 < used_s < 1.0
    assert busy.status() != psutil.STATUS_STOPPED


def test_a_process_that_ends_meanwhile_is_no_error(busy: psutil.Process) -> None:
    threading.Timer(0.3, busy.kill).start()
    started_s = time.monotonic()
    slow_down(lambda: [busy.pid], factor=2.0, duration_s=0.8)
    assert time.monotonic() - started_s >= 0.8


def test_an_interrupted_throttle_restores_full_speed(busy: psutil.Process) -> None:
    looks = iter([[busy.pid]])

    def find() -> list[int]:
        try:
            return next(looks)
        except StopIteration:
            raise KeyboardInterrupt from None

    with pytest.raises(KeyboardInterrupt):
        slow_down(find, factor=50.0, duration_s=30.0)
    assert busy.status() != psutil.STATUS_STOPPED
