"""The smoke run of the doctor: its run file, its figures, and a run that cannot start."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tidegate.cli.doctor.smoke import BATCH_SIZE, NUM_SAMPLES, SIZES, examine_smoke, run_of
from tidegate.cli.doctor.smoke_run import figures, run_smoke
from tidegate.core.doctor import GpuFacts
from tidegate.core.smoke import SmokeFacts
from tidegate.launch.run_parsing import parse_plan


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_run_file_is_one_that_a_start_takes(tmp_path: Path, size: str, engine: str) -> None:
    (tmp_path / "problems.jsonl").write_text("{}\n")
    (tmp_path / "parity.py").write_text("")
    content = run_of(tmp_path / "model", SIZES[size], engine=engine, ranks=8, on_gpu=True)
    plan = parse_plan({**content, "files_dir": str(tmp_path)}, source="smoke")
    assert plan.file.batch_size == BATCH_SIZE
    assert not BATCH_SIZE % NUM_SAMPLES
    assert SIZES[size].num_tokens < SIZES[size].context_length


def test_figures_are_of_the_usual_update_and_of_lag_0_alone() -> None:
    updates: list[dict[str, Any]] = [
        {"env_steps": 100, "train_s": 9.0, "metrics": {"mismatch_kl_lag_0": 0.01}},
        {"env_steps": 220, "train_s": 1.0, "metrics": {"mismatch_kl_lag_1": 5.0}},
        # The learner went back to its checkpoint.
        {"env_steps": 180, "train_s": 2.0, "metrics": {"mismatch_kl_lag_0": 0.03}},
        {"env_steps": 320, "train_s": 3.0, "metrics": {}},
    ]
    found = figures(updates)
    assert found["mismatch_kl"] == pytest.approx(0.02)
    assert found["update_tokens"] == 130.0
    assert found["update_s"] == 2.0
    assert figures([]) == {"mismatch_kl": None, "update_tokens": 0.0, "update_s": 0.0}


def test_packages_that_are_missing_are_a_line_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    [finding] = examine_smoke(GpuFacts(), size_name="tiny", keep=False, say=lambda _line: None)
    assert (finding.check, finding.outcome) == ("smoke run", "fail")
    assert "transformers" in finding.found
    assert "tidegate[train,llm]" in finding.fix


@pytest.mark.slow
def test_run_that_cannot_start_is_told_with_what_it_printed(tmp_path: Path) -> None:
    path = tmp_path / "smoke.yaml"
    path.write_text("run: smoke\nworkloda: {}\n")
    lines: list[str] = []
    wanted = SmokeFacts(engine="torch", ranks=1, wanted=20)
    facts = run_smoke(path, tmp_path / "run", wanted, lines.append)
    assert facts.versions == 0
    assert facts.balanced is None
    assert "workloda" in facts.problem
    assert any("no first updates" in line for line in lines)
