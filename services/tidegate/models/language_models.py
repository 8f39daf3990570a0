"""Opens the model and the tokenizer of a run file's policy: one literal table, by the policy's kind.

Actor and learner open the same ones from it. Libraries are imported when their kind is opened, so that a run with
``char_lm`` needs no transformers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch

from tidegate.core.errors import ConfigError
from tidegate.models.causal_lm import CausalLm
from tidegate.models.model_folder import CACHE_DIR, pretrained_folder
from tidegate.models.tokenizer import TurnTokenizer


class LoraPolicy(Protocol):
    """The run file's ``policy.lora``."""

    @property
    def rank(self) -> int:
        """0 trains all weights."""
        ...

    @property
    def alpha(self) -> float:
        """An adapter's output is scaled by alpha / rank."""
        ...

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of layers; empty for all linear ones but the head."""
        ...


class ChatSettings(Protocol):
    """How conversations are written for a model with a chat template."""

    @property
    def system_prompt(self) -> str: ...  # noqa: D102
    @property
    def template_args(self) -> Mapping[str, str | bool | int | float | None]: ...  # noqa: D102


class LanguagePolicy(Protocol):
    """The run file's ``policy`` of a language model."""

    @property
    def kind(self) -> str:
        """A key of ``OPENERS``."""
        ...

    @property
    def d_model(self) -> int: ...  # noqa: D102 (its own documentation is the run file's)
    @property
    def num_layers(self) -> int: ...  # noqa: D102
    @property
    def num_heads(self) -> int: ...  # noqa: D102
    @property
    def context_length(self) -> int: ...  # noqa: D102
    @property
    def value_head(self) -> bool: ...  # noqa: D102
    @property
    def path(self) -> str: ...  # noqa: D102
    @property
    def lora(self) -> LoraPolicy: ...  # noqa: D102
    @property
    def dtype(self) -> Literal["float32", "bfloat16"]: ...  # noqa: D102
    @property
    def chat(self) -> ChatSettings: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class OpeningOptions:
    """``trains``: whether parameters have gradients. ``generator``: initialises new parameters."""

    trains: bool
    cache_dir: Path
    generator: torch.Generator | None


def open_language_model(
    policy: LanguagePolicy,
    *,
    trains: bool,
    device: torch.device,
    cache_dir: Path | None = None,
    generator: torch.Generator | None = None,
) -> CausalLm:
    """The policy's model on ``device``; ``cache_dir`` (else ``CACHE_DIR``) caches a converted one.

    Raises:
        ConfigError: there is no such model, or a library is missing.
    """
    options = OpeningOptions(trains=trains, cache_dir=cache_dir or CACHE_DIR, generator=generator)
    return _opener(policy).model(policy, options, device)


def open_tokenizer(policy: LanguagePolicy, *, cache_dir: Path | None = None) -> TurnTokenizer:
    """The policy's tokenizer.

    Raises:
        ConfigError: there is no such model, or a library is missing.
    """
    return _opener(policy).tokenizer(policy, cache_dir or CACHE_DIR)


def _char_lm(policy: LanguagePolicy, options: OpeningOptions, device: torch.device) -> CausalLm:
    from tidegate.models.char_lm import CharLm, CharLmSpec

    spec = CharLmSpec(
        d_model=policy.d_model,
        num_layers=policy.num_layers,
        num_heads=policy.num_heads,
        context_length=policy.context_length,
        value_head=policy.value_head,
    )
    model = CharLm(spec, generator=options.generator).to(device)
    return model.requires_grad_(options.trains)


def _char_tokenizer(policy: LanguagePolicy, cache_dir: Path) -> TurnTokenizer:
    del policy, cache_dir  # one alphabet for all
    from tidegate.models.char_tokenizer import CharTokenizer

    return CharTokenizer()


def _transformers_lm(policy: LanguagePolicy, options: OpeningOptions, device: torch.device) -> CausalLm:
    folder = pretrained_folder(policy.path, cache_dir=options.cache_dir)
    from tidegate.models.transformers_lm import TransformersLm, TransformersLmSpec

    spec = TransformersLmSpec(
        folder=str(folder),
        context_length=policy.context_length,
        dtype=policy.dtype,
        lora_rank=policy.lora.rank,
        lora_alpha=policy.lora.alpha,
        lora_targets=policy.lora.targets,
        value_head=policy.value_head,
        # On a CPU core the fused kernel's backward pass takes a fifth of a training step: SmolLM2 with adapters, 32
        # completions of 12 tokens, took 5.9 s with it and 4.5 s without in bfloat16, 6.6 s and 5.9 s in float32.
        attention="eager" if device.type == "cpu" else "auto",
    )
    return TransformersLm(spec, trains=options.trains, generator=options.generator).to(device)


def _transformers_tokenizer(policy: LanguagePolicy, cache_dir: Path) -> TurnTokenizer:
    folder = pretrained_folder(policy.path, cache_dir=cache_dir)
    from tidegate.models.transformers_tokenizer import TransformersTokenizer

    return TransformersTokenizer(
        folder, system_prompt=policy.chat.system_prompt, template_args=policy.chat.template_args
    )


@dataclass(frozen=True, slots=True)
class Opener:
    """Functions that open the model and the tokenizer of a kind of policy."""

    model: Callable[[LanguagePolicy, OpeningOptions, torch.device], CausalLm]
    tokenizer: Callable[[LanguagePolicy, Path], TurnTokenizer]


OPENERS: dict[str, Opener] = {
    "char_lm": Opener(model=_char_lm, tokenizer=_char_tokenizer),
    "transformers": Opener(model=_transformers_lm, tokenizer=_transformers_tokenizer),
}


def _opener(policy: LanguagePolicy) -> Opener:
    if policy.kind not in OPENERS:
        raise ConfigError(
            f"policy.kind {policy.kind} is no language model", fix=f"use one of {', '.join(sorted(OPENERS))}"
        )
    return OPENERS[policy.kind]
