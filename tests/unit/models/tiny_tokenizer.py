"""A tokenizer of the kind that pretrained folders have, of a few words and single letters."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ("<|end|>", "<|im_start|>", "<|im_end|>")


def add_tokenizer(folder: Path, *, chat_template: str | None, eos: str = "<|end|>") -> Path:
    """Save one into a model's folder: bytes as tokens, behind three special ones."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {token: index for index, token in enumerate((*SPECIALS, *letters))}
    tokenizer: Any = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=eos, additional_special_tokens=list(SPECIALS[1:])
    )
    wrapped.chat_template = chat_template
    wrapped.save_pretrained(folder)
    return folder
