"""A pretrained folder made from nothing: random weights of a given shape, and a tokenizer of bytes.

For trials of a machine, where what the model writes does not matter and no model can be loaded.
"""

from pathlib import Path
from typing import Any, cast

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from tidegate.core.sizing.shapes import ModelShape

END = "<|end|>"


def write_random_model(folder: Path, shape: ModelShape, *, seed: int, context_length: int) -> None:
    """Write config, weights (bfloat16) and tokenizer, as the library itself does; 2 bytes of disk a parameter.

    Raises:
        OSError: the folder cannot be written.
    """
    cast("Any", transformers_logging).disable_progress_bar()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    # Every id has a text: what the model writes is read by verifiers.
    others = [f"<{index}>" for index in range(1 + len(letters), shape.vocabulary_size)]
    ids = {token: index for index, token in enumerate((END, *letters, *others))}
    config: Any = cast("Any", transformers).Qwen2Config(
        vocab_size=shape.vocabulary_size,
        hidden_size=shape.width,
        intermediate_size=shape.mlp_width,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=context_length,
        tie_word_embeddings=shape.tied,
        bos_token_id=ids[END],
        eos_token_id=ids[END],
        pad_token_id=ids[END],
    )
    library: Any = torch
    with library.random.fork_rng(devices=[]):
        library.manual_seed(seed)
        model: Any = cast("Any", AutoModelForCausalLM).from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer: Any = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
    wrapped.save_pretrained(folder)
