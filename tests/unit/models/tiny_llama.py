"""A pretrained folder as small as one can be: a random Llama of two layers, as transformers itself writes it."""

from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tidegate.models.transformers_lm import TransformersLm, TransformersLmSpec

VOCABULARY = 64
CONTEXT = 48
# Two query heads share each key head.
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}
SPECIAL_TOKENS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def make_folder(folder: Path, *, tied: bool, seed: int = 0, **changes: Any) -> Path:
    """Write the folder. Weights are large, so that every token shows."""
    fields = SIZES | SPECIAL_TOKENS | changes
    model: Any = LlamaForCausalLM(LlamaConfig(tie_word_embeddings=tied, **fields))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3, generator=generator)
    model.save_pretrained(folder)
    return folder


def library_model(folder: Path) -> Any:
    """The folder as transformers loads it, to compare with."""
    return cast("Any", AutoModelForCausalLM).from_pretrained(folder, dtype=torch.float32).eval()


def open_model(folder: Path, *, trains: bool = True, seed: int = 0, **changes: Any) -> TransformersLm:
    """The folder as this project loads it."""
    fields: dict[str, Any] = {"folder": str(folder), "context_length": CONTEXT} | changes
    spec = TransformersLmSpec(**fields)
    return TransformersLm(spec, trains=trains, generator=torch.Generator().manual_seed(seed))
