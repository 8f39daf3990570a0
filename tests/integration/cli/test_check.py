"""`tidegate check` of run files that can work, and of pretrained models that cannot be loaded."""

import json
from pathlib import Path

import pytest

from tests.unit.models.tiny_llama import CONTEXT, make_folder
from tests.unit.models.tiny_tokenizer import CHATML, add_tokenizer
from tidegate.cli.app import run
from tidegate.core.errors import ConfigError
from tidegate.launch.model_check import check_model
from tidegate.runtime.config import PolicyConfig

pytestmark = pytest.mark.integration
RUNS = Path(__file__).parents[3] / "runs"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_folder(tmp_path_factory.mktemp("model"), tied=True, vocab_size=320)
    return add_tokenizer(folder, chat_template=CHATML)


def policy_of(folder: Path) -> PolicyConfig:
    return PolicyConfig(kind="transformers", path=str(folder), context_length=CONTEXT)


def test_run_of_segments_is_reported_with_its_environment_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["check", str(RUNS / "cartpole.yaml"), "--set", "actor.replicas=3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["environment"]["description"]["env_id"] == "CartPole-v1"
    assert report["environment"]["num_parameters"] > 0
    assert report["instances"]["actor"] == 3
    assert report["target"] == "mean_return>=475"
    assert list(tmp_path.iterdir()) == []


def test_run_of_text_is_reported_with_its_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(RUNS / "arithmetic.yaml")]) == 0
    assert "prompts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("workload.dataset.path=nowhere.jsonl", "Dataset nowhere.jsonl is not there"),
        ("workload.env=arithmetics", "workload.env: "),
        ("until=mean_return>=475", "can never be reached with workload.kind text"),
        ("until=soon", "Target 'soon' cannot be read"),
        ("policy.kind=mlp", "The auto engine cannot run mlp on text"),
        ("batch_size=7", "batch_size 7 is no multiple of workload.num_samples"),
    ],
)
def test_text_run_that_cannot_work_is_refused_with_one_line(
    override: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", str(RUNS / "arithmetic.yaml"), "--set", override]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_what_the_library_refuses_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no tokenizer that transformers can load"):
        check_model(policy_of(make_folder(tmp_path, tied=True)))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--gpus", "8xL4-24", "--memory", "1Gi"], "in a pod of 8 ranks"),
        (["--memory", "500M"], "pod of the learner has 0.5 GB"),
        (["--gpus", "1xL4-24", "--disk", "1k"], "of disk for checkpoints"),
        (["--gpus", "8xL5"], "are no GPUs that the planner knows"),
    ],
    ids=str,
)
def test_model_that_the_learner_will_not_hold_is_refused_with_one_line(
    model: Path, options: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", str(run_file_of(model, tmp_path)), *options]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert printed.err.count("\n") == 1


def test_model_that_the_learner_will_hold_is_reported_with_its_architecture_and_size(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    room = ["--gpus", "8xL4-24", "--pods", "2", "--memory", "16Gi", "--disk", "1Gi"]
    assert run(["check", str(run_file_of(model, tmp_path)), *room, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["model"]
    assert found["architecture"] == "LlamaForCausalLM"
    assert found["size_bytes"] == (model / "model.safetensors").stat().st_size


def run_file_of(model: Path, folder: Path) -> Path:
    path = folder / "run.yaml"
    text = f"""
run: small
workload: {{kind: text, env: sums, num_samples: 4, sampler: {{max_new_tokens: 8}}}}
policy: {{kind: transformers, path: {model}, context_length: {CONTEXT}}}
batch_size: 8
max_running: 16
"""
    path.write_text(text, encoding="utf-8")
    return path
