from pathlib import Path

import pytest
import torch

from tests.unit.models.tiny_llama import make_folder
from tests.unit.models.tiny_tokenizer import CHATML, add_tokenizer
from tidegate.core.errors import ConfigError
from tidegate.models.language_models import open_language_model, open_tokenizer
from tidegate.models.model_folder import pretrained_folder
from tidegate.runtime.config import LoraConfig, PolicyConfig

CPU = torch.device("cpu")
CHAR_LM = PolicyConfig(kind="char_lm", d_model=16, num_layers=1, num_heads=2, context_length=12)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_a_character_model_is_opened_by_the_run_file() -> None:
    model = open_language_model(CHAR_LM, trains=True, device=CPU, generator=generator())
    again = open_language_model(CHAR_LM, trains=False, device=CPU, generator=generator())
    assert model.context_length == 12
    assert all(torch.equal(value, again.trainable()[name]) for name, value in model.trainable().items())
    assert all(value.requires_grad for value in model.trainable().values())
    assert not any(value.requires_grad for value in again.trainable().values())
    assert open_tokenizer(CHAR_LM).encode_prompt("1+1=") == [1, 4, 13, 4, 17]


def test_a_pretrained_model_is_opened_by_the_run_file(tmp_path: Path) -> None:
    folder = add_tokenizer(make_folder(tmp_path, tied=True, vocab_size=272), chat_template=CHATML)
    policy = PolicyConfig(
        kind="transformers",
        path=str(folder),
        context_length=24,
        lora=LoraConfig(rank=2, alpha=8.0, targets=("q_proj",)),
        dtype="bfloat16",
        value_head=True,
    )
    model = open_language_model(policy, trains=True, device=CPU)
    assert (model.context_length, model.vocabulary_size, model.has_value_head) == (24, 272, True)
    assert len(model.trainable()) == 2 * 2 + 2
    tokenizer = open_tokenizer(policy)
    hidden, _ = model(torch.tensor([tokenizer.encode_prompt("")[:24]]))
    assert hidden.dtype == torch.bfloat16


def test_a_policy_that_is_no_language_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="mlp is no language model"):
        open_tokenizer(PolicyConfig(kind="mlp"))


def test_a_pretrained_model_needs_a_path() -> None:
    with pytest.raises(ConfigError, match=r"needs policy\.path"):
        pretrained_folder("")


def test_a_path_is_the_folder_itself() -> None:
    assert pretrained_folder("models/seven-b") == Path("models/seven-b")
