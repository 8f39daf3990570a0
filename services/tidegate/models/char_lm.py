"""A small character-level language model: pre-LN transformer with learned positions, trained from scratch.

One forward pass serves training and generation: it runs tokens behind a cache of keys and values, and returns the
extended cache. A prompt is computed once and its cache shared by all of its completions, in generation and
(differentiably) in training.

Shapes: B rows, T tokens of this pass, S tokens in the cache, D width, H heads, V vocabulary.
"""

from collections.abc import Mapping

import msgspec
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor, nn

from tidegate.core.errors import ConfigError
from tidegate.core.records import Array
from tidegate.models.attention_context import read_behind
from tidegate.models.causal_lm import AttentionContext, KvCache
from tidegate.models.char_tokenizer import VOCABULARY_SIZE
from tidegate.models.parameter_arrays import check_fit, copied_arrays, copy_into

# Initial scale of embeddings; matrices start at 1/sqrt(fan-in), output projections of the residual stream at half.
EMBEDDING_STD = 0.02


class CharLmSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The size of a model; its vocabulary is the tokenizer's.

    ``context_length``: tokens of BOS, prompt, completion and EOS together. ``value_head``: a critic on the last hidden
    state.

    Raises:
        ConfigError: the heads do not divide the width, or a size is not positive.
    """

    d_model: int = 64
    num_layers: int = 2
    num_heads: int = 4
    context_length: int = 32
    value_head: bool = False

    def __post_init__(self) -> None:
        """Check the sizes."""
        if min(self.d_model, self.num_layers, self.num_heads, self.context_length) < 1:
            raise ConfigError(f"A char_lm policy needs positive sizes, not {self}")
        if self.d_model % self.num_heads:
            raise ConfigError(
                f"policy.d_model {self.d_model} is not a multiple of policy.num_heads {self.num_heads}",
                why="every head takes an equal part of the width",
                fix="change one of the two",
            )


class Block(nn.Module):
    """Attention, then a feed-forward layer of four times the width; both normalise first and add to the stream."""

    def __init__(self, d_model: int, *, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(d_model)
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.attention_out = nn.Linear(d_model, d_model)
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.feed_forward_in = nn.Linear(d_model, 4 * d_model)
        self.feed_forward_out = nn.Linear(4 * d_model, d_model)

    def forward(self, stream_BTD: Tensor, attention: AttentionContext, *, layer: int) -> Tensor:
        """The stream after this block, the ``layer``-th of the model."""
        num_rows, num_tokens, _ = stream_BTD.shape
        queries, keys, values = (
            part.view(num_rows, num_tokens, self.num_heads, -1).transpose(1, 2)
            for part in self.query_key_value(self.attention_norm(stream_BTD)).chunk(3, dim=-1)
        )
        keys, values = attention.extend(layer, keys, values)
        attended = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=attention.mask,
            is_causal=attention.mask is None and num_tokens > 1,
        )
        stream_BTD = stream_BTD + self.attention_out(attended.transpose(1, 2).flatten(2))
        hidden = F.gelu(self.feed_forward_in(self.feed_forward_norm(stream_BTD)))
        return stream_BTD + self.feed_forward_out(hidden)


class CharLm(nn.Module):
    """The model. Dropout-free, so training and generation compute the same."""

    def __init__(self, spec: CharLmSpec, *, generator: torch.Generator | None = None) -> None:
        """Fresh weights, drawn from ``generator`` (torch's global one without)."""
        super().__init__()
        self.spec = spec
        self.token_embedding = nn.Embedding(VOCABULARY_SIZE, spec.d_model)
        self.position_embedding = nn.Embedding(spec.context_length, spec.d_model)
        self.blocks = nn.ModuleList(
            Block(spec.d_model, num_heads=spec.num_heads) for _ in range(spec.num_layers)
        )
        self.final_norm = nn.LayerNorm(spec.d_model)
        self.head = nn.Linear(spec.d_model, VOCABULARY_SIZE, bias=False)
        self.value_head = nn.Linear(spec.d_model, 1) if spec.value_head else None
        self._initialise(generator)

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator | None) -> None:
        for name, parameter in self.named_parameters():
            if "norm" in name:
                continue  # initialised as the identity
            if name.endswith("bias") or name.startswith("value_head"):
                # An untrained critic outputs 0, so that the first advantages are the rewards alone.
                parameter.zero_()
            elif "embedding" in name:
                parameter.normal_(std=EMBEDDING_STD, generator=generator)
            else:
                writes_stream = name.endswith(("attention_out.weight", "feed_forward_out.weight"))
                std = parameter.shape[1] ** -0.5 * (0.5 if writes_stream else 1.0)
                parameter.normal_(std=std, generator=generator)

    def forward(
        self, tokens_BT: Tensor, *, cache: KvCache | None = None, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, KvCache]:
        """Run tokens behind ``cache``; the normalised stream (B, T, D) and the extended cache.

        ``lengths_B``: the number of tokens in each row without its right padding; None without padding.

        Raises:
            RecordError: a row is longer than the context.
        """
        return read_behind(self, tokens_BT, cache=cache, lengths_B=lengths_B)

    def read(self, tokens_BT: Tensor, attention: AttentionContext) -> Tensor:
        """Run the model on tokens behind ``attention``; the normalised stream (B, T, D)."""
        stream = self.token_embedding(tokens_BT) + self.position_embedding(attention.positions)
        for layer, block in enumerate(self.blocks):
            stream = block(stream, attention, layer=layer)
        hidden_BTD: Tensor = self.final_norm(stream)
        return hidden_BTD

    def next_logprobs(self, hidden: Tensor, *, temperature: float | Tensor = 1.0) -> Tensor:
        """Logprobs (..., V) of the token after each position of ``hidden`` (..., D), at temperatures above 0."""
        return F.log_softmax(self.head(hidden) / temperature, dim=-1)

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
        """Tokens of BOS, prompt, completion and EOS together."""
        return self.spec.context_length

    @property
    def vocabulary_size(self) -> int:
        """The tokenizer's vocabulary size."""
        return VOCABULARY_SIZE

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.head.weight.device

    def trainable(self) -> dict[str, Tensor]:
        """All parameters by name."""
        return dict(self.named_parameters())

    def as_reference(self) -> None:
        """Every weight is trained, so the reference is a second model."""
        return

    def to_arrays(self) -> dict[str, Array]:
        """A copy of the parameters as float32 arrays by name, as published in a policy version."""
        return copied_arrays(self.state_dict())

    def check_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Check that ``arrays`` are the parameters of a model of this size.

        Raises:
            RecordError: a name is missing or unknown, or a shape or dtype differs; the message names the first.
        """
        check_fit(self.state_dict(), arrays, model=f"char_lm of {self.spec}")

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Copy parameters into the model, in place; all of them or none.

        Raises:
            RecordError: they do not fit; the model is unchanged.
        """
        self.check_arrays(arrays)
        copy_into(self.state_dict(), arrays)
