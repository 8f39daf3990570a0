"""Published parameters of a language model as folders that plain transformers and PEFT load.

``char_lm`` is computed as GPT-2 is (pre-LN, learned positions, attention and feed-forward with biases), so its weights
are those of that architecture under other names, and its characters a tokenizer of one word each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors.numpy
import torch
from peft import LoraConfig
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)
from transformers.generation.configuration_utils import GenerationConfig
from transformers.utils import logging as transformers_logging

from tidegate.core.errors import ConfigError, RecordError
from tidegate.core.records import Array, Sampler
from tidegate.models.char_tokenizer import ALPHABET, BOS, EOS, NUM_SPECIALS, PAD
from tidegate.models.language_models import LanguagePolicy, LoraPolicy

_SPECIAL_WORDS = {"<pad>": PAD, "<bos>": BOS, "<eos>": EOS}
# A critic is no part of a model that writes text.
_CRITIC = "value_head."
_LORA_A, _LORA_B = ".lora_A.weight", ".lora_B.weight"
# What PEFT writes before the names of the network's own layers.
_PEFT_PREFIX = "base_model.model."


@dataclass(frozen=True, slots=True)
class ModelParts:
    """A network and its tokenizer, both of the library's classes."""

    network: Any
    tokenizer: Any

    def write(self, folder: Path, sampler: Sampler, *, stop_ids: Sequence[int]) -> None:
        """Write weights, config, tokenizer and how the run sampled into a folder."""
        cast("Any", transformers_logging).disable_progress_bar()
        self.network.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        write_generation_config(folder, sampler, stop_ids=stop_ids, pad_id=self.tokenizer.pad_token_id)


def write_generation_config(
    folder: Path, sampler: Sampler, *, stop_ids: Sequence[int], pad_id: int | None
) -> None:
    """How the run sampled: temperature, truncation, length, and the tokens that end a turn."""
    config: Any = GenerationConfig(
        do_sample=True,
        temperature=sampler.temperature,
        top_p=sampler.top_p,
        top_k=sampler.top_k,
        max_new_tokens=sampler.max_new_tokens,
        eos_token_id=sorted(stop_ids),
        pad_token_id=pad_id,
    )
    config.save_pretrained(folder)


def merged_model(policy: LanguagePolicy, tensors: Mapping[str, Array], *, base: Path) -> ModelParts:
    """The folder ``base`` with all weights replaced, or with the adapters' products added, in ``policy.dtype``.

    Raises:
        ConfigError: ``base`` holds no model that transformers loads.
        RecordError: the tensors are not of this model.
    """
    cast("Any", transformers_logging).disable_progress_bar()
    options = {"local_files_only": True, "trust_remote_code": False}
    loaders: Any = (AutoModelForCausalLM, AutoTokenizer)
    try:
        network = loaders[0].from_pretrained(str(base), dtype=torch.float32, use_safetensors=True, **options)
        tokenizer = loaders[1].from_pretrained(str(base), **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(
            f"policy.path {base} holds no model with a tokenizer that transformers can load",
            why=str(error).strip().split("\n")[0],
            fix="name the folder that the run was started with",
        ) from error
    weights = {name: torch.as_tensor(np.asarray(array)) for name, array in tensors.items()}
    if policy.lora.rank:
        _add_adapters(network, weights, policy.lora)
    else:
        _replace(network, weights)
    return ModelParts(network.to(getattr(torch, policy.dtype)), tokenizer)


@torch.no_grad()
def _add_adapters(network: Any, weights: Mapping[str, Tensor], lora: LoraPolicy) -> None:
    """Add (alpha / rank) · B · A to each adapted layer (Hu 2021, section 4.1)."""
    for layer in adapted_layers(weights):
        first, second = weights[f"{layer}{_LORA_A}"], weights[f"{layer}{_LORA_B}"]
        parameter: Tensor = _parameter(network, f"{layer}.weight", shape=(len(second), first.shape[1]))
        parameter.add_(second.float() @ first.float(), alpha=lora.alpha / lora.rank)


@torch.no_grad()
def _replace(network: Any, weights: Mapping[str, Tensor]) -> None:
    for name, weight in weights.items():
        if not name.startswith(_CRITIC):
            _parameter(network, name, shape=tuple(weight.shape)).copy_(weight)


def _parameter(network: Any, name: str, *, shape: tuple[int, ...]) -> Tensor:
    try:
        parameter: Tensor = network.get_parameter(name)
    except AttributeError:
        parameter = torch.empty(0)
    if tuple(parameter.shape) != shape:
        raise RecordError(
            f"The model of policy.path has no {name} of shape {shape}",
            why="the version was trained on another model",
            fix="name the folder that the run was started with",
        )
    return parameter


def adapted_layers(tensors: Mapping[str, Any]) -> list[str]:
    """Names of the layers that have an adapter."""
    return [name.removesuffix(_LORA_A) for name in tensors if name.endswith(_LORA_A)]


def write_adapters(folder: Path, tensors: Mapping[str, Array], lora: LoraPolicy, *, base: str) -> None:
    """Write the adapters as PEFT does; ``base``: what they name as their model."""
    layers = adapted_layers(tensors)
    settings: Any = LoraConfig(
        r=lora.rank,
        lora_alpha=cast("int", lora.alpha),  # any number works, despite its annotation
        target_modules=list(lora.targets) or sorted({layer.rsplit(".", 1)[-1] for layer in layers}),
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        inference_mode=True,
    )
    settings.save_pretrained(str(folder))
    kept = {
        f"{_PEFT_PREFIX}{layer}{end}": np.asarray(tensors[f"{layer}{end}"], order="C")
        for layer in layers
        for end in (_LORA_A, _LORA_B)
    }
    cast("Any", safetensors.numpy).save_file(
        kept, folder / "adapter_model.safetensors", metadata={"format": "pt"}
    )


def char_model(policy: LanguagePolicy, tensors: Mapping[str, Array]) -> ModelParts:
    """A ``char_lm`` as GPT-2, in float32; the head has no bias and shares no weights.

    Raises:
        RecordError: the tensors are not of this model.
    """
    tokenizer = char_tokenizer(context_length=policy.context_length)
    network = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=NUM_SPECIALS + len(ALPHABET),
            n_positions=policy.context_length,
            n_embd=policy.d_model,
            n_layer=policy.num_layers,
            n_head=policy.num_heads,
            activation_function="gelu",
            layer_norm_epsilon=1e-5,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            tie_word_embeddings=False,
            bos_token_id=BOS,
            eos_token_id=EOS,
            pad_token_id=PAD,
        )
    )
    names = _gpt2_names(policy.num_layers)
    weights: dict[str, Tensor] = {}
    for name, array in tensors.items():
        if name.startswith(_CRITIC):
            continue
        tensor = torch.as_tensor(np.array(array))
        # GPT-2 multiplies from the other side: its matrices within a block are (inputs, outputs).
        is_matrix_of_block = name.startswith("blocks.") and tensor.dim() == 2
        weights[names.get(name, name)] = tensor.T.contiguous() if is_matrix_of_block else tensor
    _replace(network, weights)
    return ModelParts(network.eval(), tokenizer)


def _gpt2_names(num_layers: int) -> dict[str, str]:
    parts = {
        "attention_norm": "ln_1",
        "query_key_value": "attn.c_attn",
        "attention_out": "attn.c_proj",
        "feed_forward_norm": "ln_2",
        "feed_forward_in": "mlp.c_fc",
        "feed_forward_out": "mlp.c_proj",
    }
    names = {
        "token_embedding.weight": "transformer.wte.weight",
        "position_embedding.weight": "transformer.wpe.weight",
        "final_norm.weight": "transformer.ln_f.weight",
        "final_norm.bias": "transformer.ln_f.bias",
        "head.weight": "lm_head.weight",
    }
    for layer in range(num_layers):
        for own, other in parts.items():
            for kind in ("weight", "bias"):
                names[f"blocks.{layer}.{own}.{kind}"] = f"transformer.h.{layer}.{other}.{kind}"
    return names


def char_tokenizer(*, context_length: int) -> Any:
    """The characters of ``char_tokenizer`` for transformers: a text gets a ``<bos>`` in front."""
    words = _SPECIAL_WORDS | {character: NUM_SPECIALS + index for index, character in enumerate(ALPHABET)}
    characters = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    splitting: Any = pre_tokenizers.Split(Regex("[\\s\\S]"), behavior="isolated")
    characters.pre_tokenizer = splitting
    adding: Any = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    characters.post_processor = adding
    fusing: Any = decoders.Fuse()
    characters.decoder = fusing
    return PreTrainedTokenizerFast(
        tokenizer_object=characters,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
    )
