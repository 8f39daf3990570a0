import json
from pathlib import Path

import pytest

from tidegate.cli.app import run

SEVEN = ("--model", "7b", "--gpus", "8xH100-80")


def test_plan_of_a_model_that_fits_ends_with_what_is_free(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *SEVEN, "--lora", "16", "--length", "4k", "--gpu-price", "2.5"]) == 0
    printed = capsys.readouterr().out
    for part in ("activations", "MFU 25% (stated, not measured)", "root to", "$20.00 per hour", "GPUs train"):
        assert part in printed
    assert printed.rstrip().splitlines()[-1].startswith("It fits: ")


def test_plan_of_a_model_that_does_not_fit_names_the_nearest_and_ends_with_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["plan", *SEVEN, "--length", "16k"]) == 1
    last = capsys.readouterr().out.rstrip().splitlines()[-1]
    assert last.startswith("Nearest that fits: Qwen2.5-7B, LoRA of rank 16")


def test_plan_of_a_model_in_json_has_memory_by_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *SEVEN, "--lora", "16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["does_not_fit"] is None
    assert found["learner"]["activations"] > found["learner"]["parameters"] > 0
    assert found["split"]["learner_gpus"] + found["split"]["num_actors"] == 8


def test_model_may_be_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert run(["plan", "--model", str(tmp_path), "--gpus", "2xL4-24", "--json"]) == 0
    shape = json.loads(capsys.readouterr().out)["request"]["training"]["shape"]
    assert (shape["name"], shape["biases"]) == (tmp_path.name, False)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--model", "7b"), "--model needs --gpus"),
        ((*SEVEN, "--actors", "4"), "leave out --model"),
        ((*SEVEN, "--from-run", "runs"), "neither --from-run nor --html"),
        (("--model", "9b", "--gpus", "8xH100-80"), "0.5b"),
        (("--model", "7b", "--gpus", "8xH100"), "kinds:"),
    ],
    ids=str,
)
def test_options_that_describe_no_plan_are_refused(
    arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", *arguments]) == 2
    assert reason in " ".join(capsys.readouterr().err.split())
