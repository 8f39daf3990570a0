"""A pretrained causal language model from a folder, its layers computed by the library transformers.

All weights can be trained, or low-rank adapters. Trained parameters are always float32; frozen ones and the computation
are ``dtype``. The head is computed in float32, as bfloat16 logits of size 20 have errors up to 0.06, by which engine
and learner would disagree.

Shapes: B rows, T tokens of this pass, S tokens in the cache, D width, V vocabulary.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor, nn
from torch.func import functional_call
from transformers import Cache, DynamicLayer

from tidegate.core.records import Array
from tidegate.models.attention_context import read_behind
from tidegate.models.causal_lm import AttentionContext, KvCache
from tidegate.models.lora import adapters_off, add_adapters
from tidegate.models.parameter_arrays import check_fit, copied_arrays, copy_into
from tidegate.models.pretrained_folder import load_pretrained

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# Prefix of the critic's parameters, which engines without a critic ignore.
VALUE_HEAD_PREFIX = "value_head."


class TransformersLmSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model and its trained part; the fields are those of the run file's ``policy``.

    ``folder``: config and safetensors. ``lora_rank``: 0 trains all weights. ``value_head``: a critic on the last hidden
    state; actors have it as well, so that one set of names is published, checked and restored everywhere.
    ``attention``: ``auto`` is the library's choice, fused kernels where available; ``eager`` is plain matrix products.
    """

    folder: str
    context_length: int
    dtype: Literal["float32", "bfloat16"] = "float32"
    lora_rank: int = 0
    lora_alpha: float = 32.0
    lora_targets: tuple[str, ...] = ()
    value_head: bool = False
    attention: Literal["auto", "eager"] = "auto"


class TransformersLm(nn.Module):
    """The model. Dropout-free, so training and generation compute the same."""

    def __init__(
        self, spec: TransformersLmSpec, *, trains: bool, generator: torch.Generator | None = None
    ) -> None:
        """The folder's weights, and fresh adapters drawn from ``generator`` (torch's global one without).

        ``trains``: whether parameters have gradients. A model that only generates keeps all weights in ``dtype``; one
        that trains all of them keeps float32 and rounds them to ``dtype`` in each pass, so both compute the same.

        Raises:
            ConfigError: the folder holds no supported model, or the adapters do not fit it.
        """
        super().__init__()
        self.spec = spec
        self.dtype = DTYPES[spec.dtype]
        full = spec.lora_rank == 0
        pretrained = load_pretrained(
            Path(spec.folder),
            dtype=torch.float32 if full and trains else self.dtype,
            context_length=spec.context_length,
            attention=spec.attention,
        )
        self.network = pretrained.network
        self._vocabulary_size = pretrained.vocabulary_size
        if full:
            self._trained: dict[str, Tensor] = dict(self.network.named_parameters())
        else:
            self._trained = add_adapters(
                self.network,
                rank=spec.lora_rank,
                alpha=spec.lora_alpha,
                targets=spec.lora_targets,
                generator=generator,
            )
        self.value_head: nn.Linear | None = None
        if spec.value_head:
            self.value_head = nn.Linear(pretrained.head.in_features, 1)
            # The first advantages are the rewards alone, without the noise of an untrained critic.
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
            self._trained |= {
                f"{VALUE_HEAD_PREFIX}{name}": value for name, value in self.value_head.named_parameters()
            }
        if not trains:
            self.requires_grad_(requires_grad=False)
        self._rounds_weights = full and trains and self.dtype != torch.float32
        # The float32 copy of the head, where the computation uses neither the parameter nor its rounding.
        self._float32_head: Tensor | None
        self.register_buffer("_float32_head", None, persistent=False)
        self._refresh_head()

    @property
    def _body(self) -> nn.Module:
        body: nn.Module = self._any_network.base_model
        return body

    @property
    def _head(self) -> nn.Linear:
        head: nn.Linear = self._any_network.get_output_embeddings()
        return head

    @property
    def _any_network(self) -> Any:
        return self.network  # the library's types end here

    def forward(
        self, tokens_BT: Tensor, *, cache: KvCache | None = None, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, KvCache]:
        """Run tokens behind ``cache``; the last hidden state (B, T, D), normalised, and the extended cache.

        ``lengths_B``: the number of tokens in each row without its right padding; None without padding.

        Raises:
            RecordError: a row is longer than the context.
        """
        return read_behind(self, tokens_BT, cache=cache, lengths_B=lengths_B)

    def read(self, tokens_BT: Tensor, attention: AttentionContext) -> Tensor:
        """Run the model on tokens behind ``attention``; the last hidden state (B, T, D), normalised."""
        inputs = {
            "input_ids": tokens_BT,
            "attention_mask": None if attention.mask is None else self._library_mask(attention.mask),
            "position_ids": attention.positions,
            "past_key_values": _AttentionContextCache(attention, num_tokens=tokens_BT.shape[1]),
            "use_cache": True,
        }
        if self._rounds_weights:
            rounded = {name: weight.to(self.dtype) for name, weight in self._body.named_parameters()}
            output: Any = functional_call(self._body, rounded, kwargs=inputs)
        else:
            output = self._body(**inputs)
        hidden_BTD: Tensor = output.last_hidden_state
        return hidden_BTD

    def next_logprobs(self, hidden: Tensor, *, temperature: float | Tensor = 1.0) -> Tensor:
        """Logprobs (..., V) in float32 of the token after each position of ``hidden``, at temperatures above 0."""
        weight = self._head.weight if self._float32_head is None else self._float32_head
        if self._rounds_weights:
            weight = weight.to(self.dtype).float()
        logits = F.linear(hidden.float(), weight)
        if not isinstance(temperature, float) or temperature != 1.0:
            logits = logits / temperature
        return F.log_softmax(logits, dim=-1)

    def state_values(self, hidden: Tensor) -> Tensor:
        """The critic's estimate (...) in float32 of the return from each position of ``hidden`` (..., D)."""
        assert self.value_head is not None, "values need a model with a value head"
        values: Tensor = self.value_head(hidden.float())
        return values[..., 0]

    @property
    def has_value_head(self) -> bool:
        """Whether the model has a critic."""
        return self.value_head is not None

    @property
    def context_length(self) -> int:
        """Tokens of prompt and completion together, as configured."""
        return self.spec.context_length

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self._head.weight.device

    @property
    def vocabulary_size(self) -> int:
        """Rows of the head, which may be more than the tokenizer has tokens."""
        return self._vocabulary_size

    def trainable(self) -> dict[str, Tensor]:
        """All weights by name, tied ones once; with LoRA the adapters alone; and the value head, if there is one."""
        return dict(self._trained)

    def to_arrays(self) -> dict[str, Array]:
        """A copy of ``trainable`` as float32 arrays, as published in a policy version."""
        return copied_arrays(self._trained)

    def check_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Check that ``arrays`` fit ``trainable``.

        Raises:
            RecordError: a name is missing or unknown, or a shape or dtype differs; the message names the first.
        """
        kind = f"LoRA of rank {self.spec.lora_rank}" if self.spec.lora_rank else "full model"
        check_fit(self._trained, arrays, model=f"{kind} on {self.spec.folder}")

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Copy published parameters into the model, in place; all of them or none.

        Raises:
            RecordError: they do not fit; the model is unchanged.
        """
        self.check_arrays(arrays)
        copy_into(self._trained, arrays)
        if self.spec.lora_rank == 0:
            self._refresh_head()

    def as_reference(self) -> AbstractContextManager[None] | None:
        """A context without the adapters; None where all weights are trained, which needs a second model."""
        return adapters_off(self.network) if self.spec.lora_rank else None

    @torch.no_grad()
    def _refresh_head(self) -> None:
        """Update the float32 copy of the head."""
        if self._head.weight.dtype != torch.float32:
            self._float32_head = self._head.weight.float()

    def _library_mask(self, mask: Tensor) -> Tensor:
        """The mask in four dimensions, which the library uses as is: it reads two as padding."""
        mask = mask[None, None] if mask.dim() == 2 else mask
        if self._any_network.config._attn_implementation == "sdpa":
            return mask
        # Other attention functions add the mask to their scores.
        zeros = torch.zeros(mask.shape, dtype=self.dtype, device=mask.device)
        return zeros.masked_fill(~mask, torch.finfo(self.dtype).min)


class _AttentionContextCache(Cache):
    """Adapts an attention context to the cache interface of the library's layers."""

    def __init__(self, attention: AttentionContext, *, num_tokens: int) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self._attention = attention
        self._num_tokens = num_tokens

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Add this pass's keys and values; returns all of them."""
        return self._attention.extend(layer_idx, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Keys before this pass."""
        return self._attention.num_keys - self._num_tokens

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """How many keys the library's own mask covers, where the context has no mask, and the first."""
        return self._attention.num_keys, 0
