"""The smoke run of the doctor, whole, on a machine without GPUs: two ranks, kills, a pause, an audit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.extended, pytest.mark.timeout(900)]


def test_smoke_run_of_a_machine_without_gpus_passes_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-m", "tidegate.cli.main", "doctor", "--smoke", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    smoke = {name: finding for name, finding in findings.items() if name.startswith("smoke ")}
    assert {name: finding for name, finding in smoke.items() if finding["outcome"] == "fail"} == {}
    passed = {name for name, finding in smoke.items() if finding["outcome"] == "pass"}
    assert {"smoke run", "smoke kill actor-0", "smoke kill learner", "smoke pause", "smoke audit"} <= passed
    assert "smoke ranks" in passed
    assert "2 ranks" in smoke["smoke run"]["found"]
    assert not list(tmp_path.glob("tidegate-smoke-*"))
