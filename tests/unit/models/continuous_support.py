"""Models, schedules and slow answers for the tests of continuous batching."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tidegate.core.records import Array
from tidegate.models.causal_lm import AttentionContext, KvCache
from tidegate.models.char_lm import CharLm, CharLmSpec
from tidegate.models.char_tokenizer import EOS
from tidegate.models.continuous import ContinuousBatch, GenerationRow, GenerationStep

SPEC = CharLmSpec(d_model=16, num_layers=2, num_heads=2, context_length=40)
CACHE_BYTES = 1 << 22


def make_model(seed: int, *, spec: CharLmSpec = SPEC, eos_bias: float = 0.0) -> CharLm:
    """A peaked random policy; ``eos_bias`` makes it end sooner."""
    model = CharLm(spec, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        model.token_embedding.weight.mul_(50.0)
        model.position_embedding.weight.mul_(50.0)
        model.final_norm.bias.fill_(1.0)
        model.head.weight[EOS] += eos_bias / spec.d_model
    return model


class CountingLm:
    """A model that counts the tokens of its passes."""

    def __init__(self, model: CharLm) -> None:
        self.model = model
        self.num_tokens_read = 0

    @property
    def context_length(self) -> int:
        return self.model.context_length

    @property
    def vocabulary_size(self) -> int:
        return self.model.vocabulary_size

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def has_value_head(self) -> bool:
        return False

    def __call__(
        self, tokens_BT: Tensor, *, cache: KvCache | None = None, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, KvCache]:
        self.num_tokens_read += tokens_BT.numel()
        return self.model(tokens_BT, cache=cache, lengths_B=lengths_B)

    def read(self, tokens_BT: Tensor, attention: AttentionContext) -> Tensor:
        self.num_tokens_read += tokens_BT.numel()
        return self.model.read(tokens_BT, attention)

    def next_logprobs(self, hidden: Tensor, *, temperature: float | Tensor = 1.0) -> Tensor:
        return self.model.next_logprobs(hidden, temperature=temperature)

    def state_values(self, hidden: Tensor) -> Tensor:
        return self.model.state_values(hidden)

    def trainable(self) -> dict[str, Tensor]:
        return self.model.trainable()

    def to_arrays(self) -> dict[str, Array]:
        return self.model.to_arrays()

    def check_arrays(self, arrays: Mapping[str, Array]) -> None:
        self.model.check_arrays(arrays)

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        self.model.load_arrays(arrays)

    def as_reference(self) -> AbstractContextManager[None] | None:
        return None


def open_batch(
    model: CharLm | CountingLm,
    *,
    slots: int = 4,
    waiting_max: int = 64,
    tokens_per_pass: int = 64,
    cache_bytes_max: int = CACHE_BYTES,
) -> ContinuousBatch:
    return ContinuousBatch(
        model,
        slots=slots,
        waiting_max=waiting_max,
        tokens_per_pass=tokens_per_pass,
        cache_bytes_max=cache_bytes_max,
    )


def new_row(
    context: tuple[int, ...] = (1, 5, 6, 7),
    *,
    max_new_tokens: int = 8,
    temperature: float = 1.0,
    stop_ids: frozenset[int] = frozenset({EOS}),
    seed: int = 0,
) -> GenerationRow:
    return GenerationRow(context, max_new_tokens, temperature, stop_ids, seed)


@dataclass
class Text:
    """What became of a row: its tokens, their logprobs, and the number of the policy that wrote each."""

    new: GenerationRow
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    policies: list[int] = field(default_factory=list[int])
    reason: str = ""


def collect(stepped: GenerationStep, texts: dict[int, Text], *, policy: int = 0) -> None:
    """Note what a step wrote."""
    for row, token, logprob in zip(stepped.rows, stepped.tokens, stepped.logprobs, strict=True):
        text = texts[row]
        assert not text.reason, "nothing is written to a row that has ended"
        text.tokens.append(token)
        text.logprobs.append(logprob)
        text.policies.append(policy)
        text.reason = stepped.ended.get(row, "")


def write_all(batch: ContinuousBatch, rows: list[GenerationRow]) -> list[Text]:
    """Write rows to their ends."""
    texts = dict(zip(batch.add(rows), map(Text, rows), strict=True))
    while batch.num_rows:
        collect(batch.step(), texts)
    return list(texts.values())


@torch.no_grad()
def slow_logprobs(model: CharLm, text: Text) -> list[float]:
    """Of each token behind its prefix, one forward pass over the text without any cache."""
    context = list(text.new.context)
    hidden, _ = model(torch.tensor([context + text.tokens[:-1]]))
    logprobs_TV = model.next_logprobs(hidden[0, len(context) - 1 :], temperature=text.new.temperature)
    return [float(logprobs_TV[position, token]) for position, token in enumerate(text.tokens)]
