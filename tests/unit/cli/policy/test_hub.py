"""A policy is pushed to a hub in one commit, with its card; what a hub refuses is said in a sentence."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.numpy

from tests.support.hub_server import OWNER, READER, WRITER, HubServer, serve_hub
from tests.unit.cli.policy.folders import write_policies
from tests.unit.cli.policy.test_transformers_folder import store
from tidegate.cli.app import run
from tidegate.cli.policy.hub import HubRepository, push_policy

pytestmark = pytest.mark.slow


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """The client reads its variables when it is imported."""
    from huggingface_hub import constants

    with serve_hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", WRITER)
        yield server


def test_policy_of_segments_is_one_commit_with_a_card(
    tmp_path: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_policies(tmp_path / "run")
    pushed = ["policy", str(folder), "--push-to-hub", f"{OWNER}/cartpole", "--private"]
    assert run(pushed) == 0
    repository = hub.repositories[f"{OWNER}/cartpole"]
    assert repository.private
    assert f"{hub.url}/acme/cartpole/commit/1: version 0-root@20" in capsys.readouterr().out
    [(message, written, _)] = repository.commits
    assert written == ["README.md", "policy.safetensors"]
    assert message.startswith("Version 0-root@20 of ")
    card = repository.files["README.md"].decode()
    assert card.startswith("---\npipeline_tag: reinforcement-learning\n")
    assert "| algorithm | actor_critic |" in card
    assert "| environment | CartPole-v1 |" in card
    path = tmp_path / "local.safetensors"
    assert run(["policy", str(folder), "-o", str(path)]) == 0
    local = cast("Any", safetensors.numpy).load_file(path)
    assert cast("Any", safetensors.numpy).load(repository.files["policy.safetensors"]).keys() == local.keys()


def test_next_push_replaces_the_model_and_leaves_what_is_not_of_it(tmp_path: Path, hub: HubServer) -> None:
    folder = write_policies(tmp_path / "run")
    pushed = ["policy", str(folder), "--push-to-hub", "cartpole"]
    assert run(pushed) == 0
    repository = hub.repositories[f"{OWNER}/cartpole"]
    repository.files["curves.png"] = b"of a person"
    assert run([*pushed, "-o", "policy.onnx", "--version", "0-root@19"]) == 0
    _, (_, written, deleted) = repository.commits
    assert (written, deleted) == (["README.md", "policy.onnx"], ["policy.safetensors"])
    assert sorted(repository.files) == ["README.md", "curves.png", "policy.onnx"]


def test_language_model_is_pushed_as_the_folder_that_transformers_loads(
    tmp_path: Path, hub: HubServer
) -> None:
    stored = store(tmp_path / "run", [], file="arithmetic.yaml")
    push_policy(HubRepository("digits", private=False), stored, file_name="", adapters=False)
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "model"
    for name, data in hub.repositories[f"{OWNER}/digits"].files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    assert cast("Any", AutoModelForCausalLM).from_pretrained(folder).num_parameters() > 1000
    assert "library_name: transformers" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("name", "token", "said"),
    [
        (f"{OWNER}/cartpole", READER, "does not let this token write acme/cartpole"),
        (f"{OWNER}/cartpole", "hf_unknown", "HF_TOKEN"),
        ("no name", WRITER, "cannot be the name of a repository"),
    ],
)
def test_refused_push_is_said_and_commits_nothing(
    tmp_path: Path,
    hub: HubServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    token: str,
    said: str,
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    assert run(["policy", str(write_policies(tmp_path / "run")), "--push-to-hub", name]) != 0
    assert said in " ".join(capsys.readouterr().err.split())
    assert hub.repositories == {}


def test_hub_that_does_not_answer_is_named(
    tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert run(["policy", str(write_policies(tmp_path / "run")), "--push-to-hub", "cartpole"]) != 0
    assert "The hub does not answer while cartpole is written" in " ".join(capsys.readouterr().err.split())
    assert hub.repositories == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "model"], "exclude each other"),
        (["--adapters"], "no adapters"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path,
    hub: HubServer,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    pushed = ["policy", str(write_policies(tmp_path / "run")), "--push-to-hub", "cartpole"]
    assert run([*pushed, *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not any(each.commits for each in hub.repositories.values())
