"""A run whose broker lost, or finds damaged, what it stored: it resumes, and nothing is lost in silence."""

import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Run
from tests.e2e.killing import assert_accounting_balances
from tidegate.launch.live_run import BROKER

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.extended, pytest.mark.timeout(900)]

MAX_LAG = 4
STEPS = 20
# A task that the broker forgot is dropped after so long; the default is for rollouts of minutes.
TASK_DEADLINE_S = 10
SETTINGS = (f"staleness.max_lag={MAX_LAG}", f"task_queue.task_deadline_s={TASK_DEADLINE_S}")
UP = ("runs/cartpole.yaml", *(word for setting in SETTINGS for word in ("--set", setting)))


def delete(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    """Every 64th byte, the first one and the last one among them."""
    data = bytearray(path.read_bytes())
    for position in {*range(0, len(data), 64), *([len(data) - 1] if data else [])}:
        data[position] ^= 0xFF
    path.write_bytes(bytes(data))


DAMAGES: dict[str, Callable[[Path], None]] = {"deleted": delete, "truncated": truncate, "flipped": flip}
# The messages of a stream, where they are, its settings, and how far a consumer has read.
FILES = {
    "messages": "streams/*/msgs/*.blk",
    "index": "streams/*/msgs/index.db",
    "stream": "streams/*/meta.*",
    "consumer": "streams/*/obs/*/*",
    "all": "**/*",
}


# What nats-server itself does not open again.
REFUSED = {(files, damage) for files in ("consumer", "all") for damage in ("truncated", "flipped")}
EXIT_DAMAGED = 3


@pytest.fixture(scope="module")
def killed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was killed as a whole while it trained, just after its broker had written its index."""
    place = tmp_path_factory.mktemp("killed")
    run = Run(place / "run", *UP, "--until", "", output=place / "run.out")
    try:
        run.until_trains(STEPS)
        processes = [psutil.Process(process["pid"]) for process in run.processes().values()]
        broker = psutil.Process(run.pid(BROKER))
        run.process.send_signal(signal.SIGSTOP)  # it starts no other broker, and does not reap this one
        broker.terminate()
        run.until(lambda: broker.status() == psutil.STATUS_ZOMBIE, timeout_s=60, what="end of the broker")
    finally:
        run.process.kill()
        run.process.wait(timeout=60)
    psutil.wait_procs(processes, timeout=60)
    return run.folder


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("files", FILES)
def test_run_whose_broker_finds_its_files_damaged_resumes_and_balances(
    start: Callable[..., Run],
    killed_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    files: str,
    damage: str,
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(killed_run, folder)
    damaged = [path for path in (folder / "nats").glob(f"jetstream/*/{FILES[files]}") if path.is_file()]
    assert damaged
    for path in damaged:
        DAMAGES[damage](path)
    if (files, damage) in REFUSED:
        refused = start(*UP, "--until", "", folder=folder)
        assert refused.process.wait(timeout=300) == EXIT_DAMAGED, refused.tail()
        assert "the broker's files (the folder `nats` of a run)" in refused.output.read_text()
        shutil.rmtree(folder / "nats")
    run = start(*UP, "--until", "", folder=folder)
    before = len(run.steps())
    trains_s = run.until(lambda: len(run.steps()) >= before + STEPS, timeout_s=300, what="training again")
    run.process.terminate()
    _, summary = run.wait(timeout_s=180)
    assert_accounting_balances(summary["audit"], max_lag=MAX_LAG)
    with capsys.disabled():
        sys.stdout.write(
            f"\n  {files} {damage}: {'refused, and removed: ' if (files, damage) in REFUSED else ''}{STEPS} steps"
            f" after {trains_s:.1f} s, dropped {summary['audit']['dropped']}"
        )
