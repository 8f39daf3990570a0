from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
)

from tests.unit.models.tiny_llama import CONTEXT, SIZES, VOCABULARY, make_folder
from tidegate.core.errors import ConfigError
from tidegate.models.pretrained_folder import check_pretrained, load_pretrained


def save(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)


def load(folder: Path, *, context_length: int = CONTEXT) -> None:
    load_pretrained(folder, dtype=torch.float32, context_length=context_length)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere is no folder of a pretrained model"):
        load(tmp_path / "nowhere")


def test_weights_in_a_pickle_are_not_even_looked_at(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, tied=True)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"no weights \(\*\.safetensors\)"):
        load(folder)


@pytest.mark.slow
def test_a_folder_of_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, tied=True)
    (folder / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ConfigError, match="no causal language model that transformers can load"):
        load(folder)


def test_layers_that_forget_are_refused_beyond_their_window(tmp_path: Path) -> None:
    save(MistralForCausalLM(MistralConfig(**SIZES, sliding_window=16)), tmp_path)
    with pytest.raises(ConfigError, match="window of 16 tokens"):
        load(tmp_path)
    load(tmp_path, context_length=16)


def test_an_architecture_that_changes_its_logits_behind_the_head_is_refused(tmp_path: Path) -> None:
    config = Gemma2Config(
        **SIZES,
        head_dim=8,
        initializer_range=0.5,
        final_logit_softcapping=1.0,
        sliding_window=CONTEXT,
    )
    save(Gemma2ForCausalLM(config), tmp_path)
    with pytest.raises(ConfigError, match="scales, caps or shifts them"):
        load(tmp_path)


def test_learned_positions_and_other_names_of_layers_are_fine(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4)
    save(GPT2LMHeadModel(config), tmp_path)
    loaded = load_pretrained(tmp_path, dtype=torch.float32, context_length=CONTEXT)
    assert (loaded.context_length, loaded.vocabulary_size) == (CONTEXT, VOCABULARY)


def test_config_alone_tells_kind_and_context(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, tied=True)
    (folder / "model.safetensors").write_bytes(b"")  # no weights are read
    assert check_pretrained(folder, context_length=CONTEXT) == "LlamaForCausalLM"
    with pytest.raises(ConfigError, match=f"policy.context_length 4096 is longer than the {CONTEXT} tokens"):
        check_pretrained(folder, context_length=4096)
    (folder / "config.json").write_text('{"model_type": "vit"}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"can load.*its model_type is vit, which writes no text"):
        check_pretrained(folder, context_length=CONTEXT)
    (folder / "config.json").write_text('{"model_type": "unheard_of"}', encoding="utf-8")
    with pytest.raises(ConfigError, match="no causal language model that transformers can load"):
        check_pretrained(folder, context_length=CONTEXT)
