"""A reward model in a child process: a random classifier as small as one can be, against the library itself."""

import os
import shutil
import signal
import sys
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from tidegate.core.errors import ConfigError, DeadlineError
from tidegate.environment.tasks.port import Problem
from tidegate.environment.verifiers.classifier import Classifier
from tidegate.environment.verifiers.settings import ClassifierSettings

# Each child imports torch and transformers, for seconds.
pytestmark = [pytest.mark.integration, pytest.mark.slow]
CHARACTERS = "0123456789+= abc"
PROBLEM = Problem("47+38", "47+38=", "085", "carries-1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of one layer over single characters, with the labels bad and good."""
    path = tmp_path_factory.mktemp("classifier")
    config = BertConfig(
        vocab_size=len(CHARACTERS) + 2,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        id2label={0: "bad", 1: "good"},
        label2id={"bad": 0, "good": 1},
    )
    model: Any = BertForSequenceClassification(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5, generator=generator)
    model.save_pretrained(path)
    tokens = {"[PAD]": 0, "[UNK]": 1} | {character: 2 + index for index, character in enumerate(CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(tokens, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    wrapped: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    wrapped.save_pretrained(path)
    return path


def logits_of(folder: Path, text: str) -> list[float]:
    """What the library computes in this process."""
    model = cast("Any", AutoModelForSequenceClassification).from_pretrained(folder).eval()
    ids = [2 + CHARACTERS.index(character) if character in CHARACTERS else 1 for character in text][:32]
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].tolist()


async def test_scores_are_those_of_the_library_and_no_secret_reaches_the_child(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_BROKER_TOKEN", "secret")
    classifier = Classifier(ClassifierSettings(path=str(folder), label="good"))
    await classifier.start()
    for completion in ("085", "84", "a b c", "0" * 100):
        score = await classifier.score(PROBLEM, completion)
        bad, good = logits_of(folder, f"47+38={completion}")
        assert score.components["logit"] == pytest.approx(good, abs=1e-4)
        assert score.reward == pytest.approx(torch.softmax(torch.tensor([bad, good]), 0)[1].item(), abs=1e-4)
    child = child_of(classifier)
    if sys.platform == "linux":
        assert b"secret" not in environment_of(child.pid)
    await classifier.close()
    assert child.returncode is not None


@pytest.mark.extended
async def test_child_that_died_is_restarted(folder: Path) -> None:
    classifier = Classifier(ClassifierSettings(path=str(folder), label="good"))
    before = await classifier.score(PROBLEM, "085")
    child = child_of(classifier)
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()
    assert await classifier.score(PROBLEM, "085") == before
    await classifier.close()


async def test_child_that_overran_its_deadline_is_killed(folder: Path) -> None:
    settings = ClassifierSettings(path=str(folder), label="good", start_deadline_s=0.001)
    classifier = Classifier(settings)
    with pytest.raises(DeadlineError, match=r"0\.001 s"):
        await classifier.start()
    assert classifier._child is None  # pyright: ignore[reportPrivateUsage]  whether it is gone


@pytest.mark.extended
async def test_label_that_the_folder_lacks_is_refused_with_those_that_it_has(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"no label 'fine'.*'bad', 'good'"):
        await Classifier(ClassifierSettings(path=str(folder), label="fine")).start()


@pytest.mark.extended
async def test_folder_whose_weights_are_pickled_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        await Classifier(ClassifierSettings(path=str(tmp_path), label="good")).start()


def child_of(classifier: Classifier) -> Process:
    child = classifier._child  # pyright: ignore[reportPrivateUsage]  the process itself is looked at
    assert child is not None
    return child


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def test_section_of_a_run_file_is_read() -> None:
    section = {"kind": "classifier", "path": "models/reward", "output": "logit"}
    assert msgspec.convert(section, ClassifierSettings).output == "logit"
