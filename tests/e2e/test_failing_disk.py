"""A disk that stalls, or that turns read-only: an ext4 file system in a file, which the test freezes or aborts."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, Run
from tests.e2e.killing import assert_accounting_balances

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kill,
    pytest.mark.extended,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ext4 is a file system of Linux"),
]

MAX_LAG = 4
DISK_BYTES = 300_000_000
STALL_S = 20.0
TIMEOUT_S = 300.0
# The second one has the service that acts for all actors.
NAMES = ("cartpole", "seed")


def settings(name: str) -> tuple[str, ...]:
    """The first words of ``tidegate up``."""
    return f"runs/{name}.yaml", "--set", f"staleness.max_lag={MAX_LAG}"


class Disk:
    """A file system of its own."""

    def __init__(self, folder: Path) -> None:
        """Make it, not yet mounted."""
        self.place = folder / "disk"
        self.place.mkdir()
        self._image = folder / "disk.img"
        with self._image.open("wb") as image:
            image.truncate(DISK_BYTES)
        command("mkfs.ext4", "-q", "-F", str(self._image))

    def mount(self) -> None:
        """Needs root."""
        command("mount", "-o", "loop", str(self._image), str(self.place))

    def turn_read_only(self) -> None:
        """As the kernel does after an error of the device, whatever is open."""
        command("mount", "-o", "remount,abort", str(self.place))

    def repair(self) -> None:
        """What an operator does after it: unmount, check, mount."""
        command("umount", str(self.place))
        # A busy kernel detaches the loop device later, and mounts the file read-only beside it.
        until_s = time.monotonic() + TIMEOUT_S
        while command("losetup", "--associated", str(self._image)) and time.monotonic() < until_s:
            time.sleep(0.1)
        command("e2fsck", "-p", str(self._image))
        self.mount()


def command(*words: str) -> str:
    """Run it; returns what it prints.

    Raises:
        OSError: it is not installed, or failed.
    """
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    # 1 of e2fsck: errors were corrected.
    if done.returncode > (words[0] == "e2fsck"):
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def explained(folder: Path) -> str:
    """What `tidegate explain` answers."""
    words = [sys.executable, "-m", "tidegate.cli.main", "explain", "--dir", str(folder)]
    return subprocess.run(
        words, capture_output=True, text=True, cwd=ROOT, check=False, timeout=TIMEOUT_S
    ).stdout


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A mounted file system."""
    try:
        disk = Disk(tmp_path)
        disk.mount()
    except OSError as error:
        pytest.skip(f"no ext4 file system can be mounted from a file here (this needs root): {error}")
    yield disk
    command("umount", "--lazy", str(disk.place))


@pytest.mark.parametrize("name", NAMES)
def test_run_trains_on_after_its_disk_stalled(start: Callable[..., Run], disk: Disk, name: str) -> None:
    run = start(*settings(name), "--until", "", folder=disk.place / "run")
    run.until(lambda: len(run.steps()) >= 10, timeout_s=TIMEOUT_S, what="training")
    command("fsfreeze", "--freeze", str(disk.place))
    try:
        time.sleep(STALL_S)
    finally:
        command("fsfreeze", "--unfreeze", str(disk.place))
    seen = len(run.steps())
    run.until(lambda: len(run.steps()) >= seen + 10, timeout_s=TIMEOUT_S, what="training again")
    run.process.terminate()
    _, summary = run.wait(timeout_s=TIMEOUT_S)
    assert_accounting_balances(summary["audit"], max_lag=MAX_LAG)


@pytest.mark.parametrize("name", NAMES)
def test_run_whose_disk_turns_read_only_ends_with_a_sentence_and_resumes_once_it_is_repaired(
    start: Callable[..., Run], disk: Disk, name: str
) -> None:
    folder = disk.place / "run"
    run = start(*settings(name), "--until", "", folder=folder)
    run.until(lambda: len(run.steps()) >= 10, timeout_s=TIMEOUT_S, what="training")
    disk.turn_read_only()
    code = run.process.wait(timeout=TIMEOUT_S)
    assert code == 1, run.tail()
    assert "disk read-only" in json.loads(run.output.read_text().splitlines()[-1])["problem"]
    assert "disk read-only" in explained(folder)
    disk.repair()
    trained = len(run.steps())
    resumed = start(
        *settings(name), "--until", f"version_step>={trained + 20}", "--for", "300s", folder=folder
    )
    code, summary = resumed.wait(timeout_s=2 * TIMEOUT_S)
    assert code == 0, resumed.tail()
    assert_accounting_balances(summary["audit"], max_lag=MAX_LAG)
