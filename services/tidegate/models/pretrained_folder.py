"""A pretrained model's folder (config, safetensors) as a network.

Nothing in the folder is executed: no code, no pickled weights, and nothing is downloaded.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.models.auto.configuration_auto import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from tidegate.core.errors import ConfigError
from tidegate.models.model_folder import check_folder

# Tolerance between the head's logits of the last hidden state and the network's own: rounding measured below 1e-5 in
# float32 on logits of size 10.
HEAD_TOLERANCE = 1e-3
# Input of that comparison at load; any ids of the vocabulary.
PROBE_TOKENS = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True)
class Pretrained:
    """The parts of a loaded model.

    ``network``: all of it. ``body``: its layers, from token ids to the last hidden state, normalised. ``head``: the
    linear layer from it to logits. ``context_length``: the most positions. ``vocabulary_size``:
    rows of the head, padding rows included.
    """

    network: nn.Module
    body: nn.Module
    head: nn.Linear
    context_length: int
    vocabulary_size: int


def load_pretrained(
    folder: Path, *, dtype: torch.dtype, context_length: int, attention: Literal["auto", "eager"] = "auto"
) -> Pretrained:
    """The model of a folder, its weights in ``dtype``; its layers compute without dropout.

    ``attention``: the library's choice, or plain products.

    Raises:
        ConfigError: there is no such folder, it is no causal language model in safetensors, its context is shorter than
            ``context_length``, or its layers or head are of an unsupported kind.
    """
    check_folder(folder)
    # No progress bars in a service's log.
    cast("Any", transformers_logging).disable_progress_bar()
    try:
        network: Any = cast("Any", AutoModelForCausalLM).from_pretrained(
            str(folder),
            dtype=dtype,
            attn_implementation=None if attention == "auto" else attention,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _not_loadable(folder, why=str(error).strip().split("\n")[0]) from error
    network.eval()
    config = network.config.get_text_config()
    head = network.get_output_embeddings()
    pretrained = Pretrained(
        network=network,
        body=network.base_model,
        head=head,
        context_length=int(config.max_position_embeddings),
        vocabulary_size=int(head.weight.shape[0]),
    )
    _check_context(config, folder=folder, context_length=context_length)
    _check_layers(config, folder=folder, context_length=context_length)
    _check_head(pretrained, folder=folder)
    return pretrained


def check_pretrained(folder: Path, *, context_length: int) -> str:
    """What a folder's config alone tells about ``load_pretrained``; returns the class of its network. Reads no weights.

    Raises:
        ConfigError: it is no causal language model that transformers knows, its context is shorter than
            ``context_length``, or its layers are of an unsupported kind.
    """
    check_folder(folder)
    try:
        whole: Any = cast("Any", AutoConfig).from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _not_loadable(folder, why=str(error).strip().split("\n")[0]) from error
    known = cast("dict[str, str]", MODEL_FOR_CAUSAL_LM_MAPPING_NAMES).get(whole.model_type)
    if known is None:
        raise _not_loadable(folder, why=f"its model_type is {whole.model_type}, which writes no text")
    config = whole.get_text_config()
    _check_context(config, folder=folder, context_length=context_length)
    _check_layers(config, folder=folder, context_length=context_length)
    return known


def _not_loadable(folder: Path, *, why: str) -> ConfigError:
    return ConfigError(
        f"policy.path {folder} holds no causal language model that transformers can load",
        why=why,
        fix="use a folder with config.json and safetensors of a model that needs no code of its own",
    )


def _check_context(config: Any, *, folder: Path, context_length: int) -> None:
    most = int(config.max_position_embeddings)
    if context_length > most:
        raise ConfigError(
            f"policy.context_length {context_length} is longer than the {most} tokens of {folder}",
            fix="lower policy.context_length",
        )


def _check_layers(config: Any, *, folder: Path, context_length: int) -> None:
    """Reject layers without full attention: the cache keeps all keys. A window above the context length is fine."""
    for layer in DynamicCache(config=config).layers:
        window = getattr(layer, "sliding_window", None)
        if not hasattr(layer, "keys") or (window is not None and window < context_length):
            raise ConfigError(
                f"A layer of {folder} is a {type(layer).__name__}"
                + (f" with a window of {window} tokens" if window is not None else ""),
                why="only attention over the whole context can share a prompt among its completions",
                fix=f"lower policy.context_length to {window}" if window else "use another model",
            )


@torch.no_grad()
def _check_head(pretrained: Pretrained, *, folder: Path) -> None:
    """Reject architectures that scale or cap their head's output, which using the head alone would omit."""
    tokens = torch.tensor([PROBE_TOKENS], device=pretrained.head.weight.device)
    hidden: Tensor = pretrained.body(input_ids=tokens, use_cache=False).last_hidden_state
    whole: Tensor = pretrained.network(input_ids=tokens, use_cache=False).logits
    difference = float((whole - F.linear(hidden, pretrained.head.weight)).abs().max())
    if difference > HEAD_TOLERANCE * max(1.0, float(whole.abs().max())):
        raise ConfigError(
            f"The logits of {folder} are not its head's output for the last hidden state",
            why=f"they differ by {difference:.3g}: the architecture scales, caps or shifts them",
            fix="use a model whose head is a plain linear layer without bias, such as Llama, Qwen, Mistral or SmolLM",
        )
