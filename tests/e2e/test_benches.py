"""Every bench of a round measures: what it drives by hand stays what services accept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.registry import BENCHES
from tests.e2e.conftest import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

TIMEOUT_S = 840.0
# Those of a few seconds, which also stand in for services.
SHORT = ("trajectories", "weights")
OTHERS = [name for name, entry in BENCHES.items() if not entry.asked_for and name not in SHORT]


def check_measured(name: str, folder: Path) -> None:
    report = folder / "report.json"
    command = [sys.executable, "-m", "benchmarks", name, "--quick", "--json", str(report)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    [measured] = json.loads(report.read_text())["benches"]
    assert measured["rows"]
    assert not measured["problem"]


@pytest.mark.parametrize("name", SHORT)
def test_bench_of_one_path_measures(name: str, tmp_path: Path) -> None:
    check_measured(name, tmp_path)


@pytest.mark.extended
@pytest.mark.parametrize("name", OTHERS)
def test_bench_of_whole_runs_measures(name: str, tmp_path: Path) -> None:
    check_measured(name, tmp_path)
