import json
from pathlib import Path
from typing import Any

import pytest

from tidegate.core.sizing.accelerators import ACCELERATORS
from tidegate.core.sizing.learner import Training
from tidegate.core.sizing.learner_room import LearnerRoom
from tidegate.core.sizing.shapes import SHAPES
from tidegate.launch import model_fit
from tidegate.launch.model_fit import check_model_fits, least_training, misfit_here
from tidegate.launch.preflight import PreflightError
from tidegate.launch.run_parsing import parse_plan
from tidegate.launch.run_plan import RunPlan
from tidegate.models.model_folder import shape_of_folder

QWEN_7B: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
}


def plan_of(path: str, **policy: Any) -> RunPlan:
    return parse_plan(
        {
            "run": "big",
            "workload": {"kind": "text", "env": "arithmetic", "sampler": {"max_new_tokens": 512}},
            "policy": {"kind": "transformers", "path": path, "context_length": 2048, **policy},
            "batch_size": 4,
            "max_running": 8,
        },
        source="run.yaml",
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(QWEN_7B), encoding="utf-8")
    return tmp_path


def test_least_memory_of_a_run_is_that_of_one_text_as_long_as_its_sampler_allows(folder: Path) -> None:
    training = least_training(plan_of(str(folder), dtype="bfloat16"), shape_of_folder(folder))
    assert (training.length, training.tokens_in_pass, training.width_bytes) == (512, 512, 2)


def test_run_whose_model_cannot_be_trained_here_is_refused_with_the_nearest_that_can(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_fit, "gpu_memory_bytes", lambda: 85e9)
    with pytest.raises(PreflightError, match="for the learner") as refused:
        check_model_fits(plan_of(str(folder), dtype="bfloat16"))
    assert "LoRA of rank 16" in str(refused.value)
    check_model_fits(plan_of(str(folder), dtype="bfloat16", lora={"rank": 16}))


def test_run_is_held_to_the_pods_that_its_learner_will_have(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_fit, "gpu_memory_bytes", lambda: 1e9)
    plan = plan_of(str(folder), dtype="bfloat16", lora={"rank": 16})
    kind = ACCELERATORS["H100-80"]
    check_model_fits(plan, room=LearnerRoom(ranks=8, kind=kind, memory_bytes=160e9, disk_bytes=10e9))
    with pytest.raises(PreflightError, match="in a pod of 8 ranks"):
        check_model_fits(plan, room=LearnerRoom(ranks=8, kind=kind, memory_bytes=16e9))


def test_model_of_a_kind_that_no_formula_describes_is_not_judged(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**QWEN_7B, "num_experts": 64}), encoding="utf-8")
    check_model_fits(plan_of(str(folder)))
    check_model_fits(plan_of(str(folder / "missing")))


def test_ranks_of_a_machine_without_gpus_share_its_memory() -> None:
    small = Training(SHAPES["0.5b"], length=256, width_bytes=4, pass_tokens=1)
    assert misfit_here(small, device="auto", gpu_bytes=None, host_bytes=24e9) is None
    four = Training(SHAPES["0.5b"], length=256, width_bytes=4, pass_tokens=1, ranks=4)
    misfit = misfit_here(four, device="auto", gpu_bytes=None, host_bytes=24e9)
    assert misfit is not None
    assert misfit.why == "each of 4 ranks on this machine has 6.0 GB"


def test_learner_on_a_cpu_is_not_judged_by_the_gpus_beside_it() -> None:
    training = Training(SHAPES["7b"], length=256, width_bytes=4, pass_tokens=1)
    assert misfit_here(training, device="cpu", gpu_bytes=10e9, host_bytes=1e12) is None
    assert misfit_here(training, device="auto", gpu_bytes=10e9, host_bytes=1e12) is not None
