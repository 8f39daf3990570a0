"""The cores that the processes of a run use, as the kernel says."""

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux assigns cores"),
]


def cores_of_threads(pid: int) -> set[str]:
    """The cores that the kernel gives the threads of a process, as it writes them."""
    found: set[str] = set()
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            lines = status.read_text().splitlines()
            found |= {line.split()[1] for line in lines if line.startswith("Cpus_allowed_list:")}
    return found


def test_every_thread_of_every_process_has_the_cores_of_its_service(start: Callable[..., Run]) -> None:
    usable = sorted(os.sched_getaffinity(0))
    first, last = usable[0], usable[-1]
    cores = f"cores={{learner: [{first}], others: [{last}]}}"
    run = start("runs/cartpole.yaml", "--for", "500s", "--set", cores)
    run.until(lambda: len(run.steps()) >= 2, timeout_s=300, what="training")
    processes = json.loads((run.folder / "processes.json").read_text())["processes"]
    assert {"learner", "nats-server", "actor-0", "trajectory_store"} <= processes.keys()
    for name, process in processes.items():
        if not name.endswith("fork-server"):
            core = first if name == "learner" else last
            assert cores_of_threads(process["pid"]) == {str(core)}, name
