"""Language models as folders that plain transformers and PEFT load, without Tidegate."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.configuration_utils import GenerationConfig

from tests.unit.cli.run_folder import LINEAGE, START_S, write_completions
from tests.unit.models.tiny_llama import CONTEXT, VOCABULARY, make_folder
from tidegate.cli.policy.transformers_folder import write_folder
from tidegate.core.errors import ConfigError
from tidegate.core.ids import PolicyVersion, RunId
from tidegate.core.records import Array
from tidegate.core.staleness import Lineage
from tidegate.launch.forking import CHECKPOINTS
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_folder import new_record, write_record
from tidegate.launch.stored_policy import StoredPolicy, read_stored_policy
from tidegate.learner.checkpoint import Checkpoint, CheckpointFolder
from tidegate.learner.optim.port import TrainerState
from tidegate.learner.state import TrainingProgress
from tidegate.models.causal_lm import CausalLm
from tidegate.models.completion_batch import completion_logprobs, pack_completions
from tidegate.models.language_models import open_language_model, open_tokenizer
from tidegate.models.model_folder import base_digest
from tidegate.runtime.run_event_log import RunEventLog

RUNS = Path(__file__).parents[4] / "runs"
CPU = torch.device("cpu")
# What float32 rounds differently in another order of operations.
TOLERANCE = 1e-5
VERSION = PolicyVersion(LINEAGE, 1)


def write_tokenizer(folder: Path) -> None:
    """As many words as the tiny model's vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{index}": index for index in range(3, VOCABULARY)}
    tokens = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    cast("Any", tokens).pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokens, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.save_pretrained(folder)


def store(folder: Path, sets: list[str], *, file: str) -> StoredPolicy:
    """A run whose newest version is a trained model, and the version as it was read."""
    plan = read_run_file(RUNS / file, sets)
    record = new_record(plan)
    write_record(folder, record)
    policy = plan.file.policy
    model = open_language_model(policy, trains=True, device=CPU, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.trainable().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    CheckpointFolder(folder / CHECKPOINTS, keep=1).write(
        Checkpoint(
            run=RunId(record.run_id),
            policy_kind=policy.kind,
            progress=TrainingProgress(version=VERSION),
            lineages=(Lineage(name=LINEAGE),),
            consumed=(),
            policy=model.to_arrays(),
            trainer=TrainerState(tensors={}, values={}),
            written_at_s=START_S,
            base_digest=base_digest(policy.kind, path=policy.path, lora_rank=policy.lora.rank),
        )
    )
    return read_stored_policy(folder, None)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = make_folder(tmp_path / "base", tied=True)
    write_tokenizer(folder)
    return folder


def of_llama(base: Path, *, rank: int, critic: bool = False) -> list[str]:
    return [
        f"policy.path={base}",
        f"policy.context_length={CONTEXT}",
        "policy.dtype=float32",
        f"policy.lora.rank={rank}",
        f"policy.value_head={str(critic).lower()}",
        "workload.sampler.temperature=0.8",
    ]


def actor_of(stored: StoredPolicy) -> CausalLm:
    """The model as an actor has it."""
    model = open_language_model(stored.file.policy, trains=False, device=CPU)
    model.load_arrays(stored.tensors)
    return model


def logprobs_of_actor(stored: StoredPolicy, prompt: list[int], completion: list[int]) -> Array:
    model = actor_of(stored)
    batch = pack_completions([prompt], [completion], group_index=[0], vocabulary_size=model.vocabulary_size)
    with torch.no_grad():
        return completion_logprobs(model, batch)[0].numpy()


def logprobs_of_library(model: Any, prompt: list[int], completion: list[int]) -> Array:
    with torch.no_grad():
        logits: Tensor = model.eval()(torch.tensor([prompt + completion])).logits
    logprobs = logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    return logprobs[torch.arange(len(completion)), torch.tensor(completion)].numpy()


def loaded(folder: Path) -> Any:
    return cast("Any", AutoModelForCausalLM).from_pretrained(folder, local_files_only=True)


PROMPT, COMPLETION = [1, 5, 6, 7, 40], [9, 9, 63, 8, 2]


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "critic"), [(4, False), (0, False), (4, True)])
def test_plain_transformers_gives_the_logprobs_of_the_actor(
    tmp_path: Path, base: Path, rank: int, critic: bool
) -> None:
    stored = store(tmp_path / "run", of_llama(base, rank=rank, critic=critic), file="smollm2.yaml")
    to = tmp_path / "model"
    write_folder(stored, to, adapters=False)
    expected = logprobs_of_actor(stored, PROMPT, COMPLETION)
    found = logprobs_of_library(loaded(to), PROMPT, COMPLETION)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)
    untrained = logprobs_of_library(loaded(base), PROMPT, COMPLETION)
    assert np.abs(untrained - expected).max() > 0.01, "another model than the one it began from"


@pytest.mark.slow
def test_plain_peft_gives_the_logprobs_of_the_actor_from_the_adapters_apart(
    tmp_path: Path, base: Path
) -> None:
    stored = store(tmp_path / "run", of_llama(base, rank=4), file="smollm2.yaml")
    to = tmp_path / "adapters"
    write_folder(stored, to, adapters=True)
    assert sum(path.stat().st_size for path in to.iterdir()) < sum(p.stat().st_size for p in base.iterdir())
    model = cast("Any", PeftModel).from_pretrained(loaded(base), to)
    found = logprobs_of_library(model, PROMPT, COMPLETION)
    np.testing.assert_allclose(found, logprobs_of_actor(stored, PROMPT, COMPLETION), atol=TOLERANCE, rtol=0)


@pytest.mark.slow
def test_a_character_model_is_one_of_transformers_with_its_alphabet(tmp_path: Path) -> None:
    stored = store(tmp_path / "run", [], file="arithmetic.yaml")
    to = tmp_path / "model"
    write_folder(stored, to, adapters=False)
    tokenizer = cast("Any", AutoTokenizer).from_pretrained(to, local_files_only=True)
    own = open_tokenizer(stored.file.policy)
    for text in ("12+34=", "a b\n?"):
        assert tokenizer(text)["input_ids"] == own.encode_prompt(text)
    assert tokenizer.decode([5, 6, 2], skip_special_tokens=True) == own.decode([5, 6, 2])
    prompt, completion = own.encode_prompt("12+34="), [3, 7, 9, 2]
    found = logprobs_of_library(loaded(to), prompt, completion)
    np.testing.assert_allclose(found, logprobs_of_actor(stored, prompt, completion), atol=TOLERANCE, rtol=0)


@pytest.mark.slow
def test_folder_says_how_the_run_sampled_and_where_the_model_comes_from(tmp_path: Path, base: Path) -> None:
    stored = store(tmp_path / "run", of_llama(base, rank=4), file="smollm2.yaml")
    to = tmp_path / "model"
    write_folder(stored, to, adapters=False)
    sampling = cast("Any", GenerationConfig).from_pretrained(to)
    assert (sampling.do_sample, sampling.temperature) == (True, 0.8)
    assert sampling.eos_token_id == [2]
    card = (to / "README.md").read_text()
    assert f"| version | {VERSION} |" in card
    assert "| temperature | 0.8 |" in card
    assert "## Accounting" not in card, "this folder holds no ledger"
    assert cast("Any", AutoTokenizer).from_pretrained(to, local_files_only=True)("w5 w6")["input_ids"] == [
        5,
        6,
    ]


@pytest.mark.slow
def test_card_has_the_verdict_of_the_ledger(tmp_path: Path) -> None:
    stored = store(tmp_path / "run", [], file="arithmetic.yaml")
    write_completions(tmp_path / "run", [("1+2=", "3", 1.0), ("1+2=", "4", 0.0)])
    RunEventLog(tmp_path / "run").append(
        b'{"kind":"warmed_up","version":"0-3fa2@0","demonstrations":"chats.jsonl","pairs":1800,"steps":40,'
        b'"tokens":5120,"loss_before":2.5,"loss_after":1.25}'
    )
    write_folder(stored, tmp_path / "model", adapters=False)
    card = (tmp_path / "model" / "README.md").read_text()
    assert "## Accounting" in card
    assert "| dropped | none |" in card
    assert "mean 0.00, at most 0" in card
    assert "head of the ledger" in card
    assert "| mean reward of its last update | 0.1 |" in card
    assert (
        "| supervised warm-up | 1,800 demonstrations of chats.jsonl, 40 steps, 5,120 tokens with a loss, "
        "held-out loss 2.5 before and 1.25 after, in nats a token |"
    ) in card


@pytest.mark.slow
def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path: Path, base: Path) -> None:
    chars = store(tmp_path / "chars", [], file="arithmetic.yaml")
    with pytest.raises(ConfigError, match="trained no adapters"):
        write_folder(chars, tmp_path / "a", adapters=True)
    with pytest.raises(ConfigError, match="exists already"):
        write_folder(chars, base, adapters=False)
    adapted = store(tmp_path / "run", of_llama(base, rank=4), file="smollm2.yaml")
    make_folder(base, tied=True, seed=1)
    with pytest.raises(ConfigError, match="not the model that the adapters were trained on"):
        write_folder(adapted, tmp_path / "b", adapters=False)
    assert {path.name for path in tmp_path.iterdir()} == {"base", "chars", "run"}
