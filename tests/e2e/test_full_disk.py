"""A disk that is full for a while: said on the screen and by `explain`, and the run trains again by itself."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, Run
from tests.support.disks import fill, mounted_small_disk

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kill,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the small disk is a tmpfs of Linux"),
]

DISK_MB = 64
FULL_S = 20.0
RECOVERY_TIMEOUT_S = 300.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_small_disk(tmp_path / "disk", size_mb=DISK_MB) as place:
        yield place


@pytest.mark.parametrize("name", ["cartpole", pytest.param("seed", marks=pytest.mark.extended)])
def test_run_trains_again_by_itself_once_a_full_disk_has_space(
    start: Callable[..., Run], small_disk: Path, name: str
) -> None:
    run = start(f"runs/{name}.yaml", "--until", "version_step>=100000", folder=small_disk / "run")
    run.until(lambda: len(run.steps()) >= 5, timeout_s=300, what="training")
    ballast = small_disk / "ballast"
    started_s = time.monotonic()
    explained = ""
    while time.monotonic() < started_s + FULL_S or "disk full" not in explained:
        fill(ballast)
        assert time.monotonic() < started_s + RECOVERY_TIMEOUT_S, explained
        if "disk full" not in explained:
            command = [sys.executable, "-m", "tidegate.cli.main", "explain", "--dir", str(run.folder)]
            explained = subprocess.run(
                command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=RECOVERY_TIMEOUT_S
            ).stdout
        time.sleep(0.2)
    assert "disk full" in run.output.read_text()
    ballast.unlink()
    seen = len(run.steps())
    run.until(lambda: len(run.steps()) >= seen + 10, timeout_s=RECOVERY_TIMEOUT_S, what="training again")
    run.process.terminate()
    _, summary = run.wait(timeout_s=300)
    assert summary["ended_by"] == "interrupted"
    assert summary["audit"]["balanced"], summary["audit"]
    assert summary["audit"]["trained_twice"] == 0
