"""Demonstrations as tokens: what a warm-up trains on, and its batches.

An episode of several turns includes the environment's replies as context, without a loss on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from tidegate.core.errors import ConfigError
from tidegate.models.completion_batch import CompletionBatch, pack_completions
from tidegate.models.tokenizer import TurnTokenizer


class WarmupExample(msgspec.Struct, frozen=True):
    """A prompt with its target completion; ``exchanges``: each environment reply with the turn that follows."""

    prompt: str
    completion: str
    exchanges: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class EncodedExample:
    """The tokens of a prompt and of what follows it; ``chosen``: which of these the policy writes."""

    prompt: NDArray[np.int32]
    tokens: NDArray[np.int32]
    chosen: NDArray[np.bool_]

    @property
    def num_tokens(self) -> int:
        """Of prompt and completion together."""
        return len(self.prompt) + len(self.tokens)


def encode_example(tokenizer: TurnTokenizer, example: WarmupExample) -> EncodedExample:
    """The tokens of an example.

    Raises:
        RecordError: a text cannot be encoded.
    """
    tokens = tokenizer.encode_turn(example.completion)
    chosen = [True] * len(tokens)
    for reply, turn in example.exchanges:
        for part, is_chosen in ((tokenizer.encode_reply(reply), False), (tokenizer.encode_turn(turn), True)):
            tokens = [*tokens, *part]
            chosen += [is_chosen] * len(part)
    prompt = tokenizer.encode_prompt(example.prompt)
    return EncodedExample(np.array(prompt, np.int32), np.array(tokens, np.int32), np.array(chosen, np.bool_))


def encode_examples(
    tokenizer: TurnTokenizer, examples: Sequence[WarmupExample], *, context_length: int
) -> list[EncodedExample]:
    """The tokens of examples that all fit into the context.

    Raises:
        RecordError: a text cannot be encoded.
        ConfigError: some are longer than the context.
    """
    encoded = [encode_example(tokenizer, example) for example in examples]
    long = [number for number, each in enumerate(encoded, start=1) if each.num_tokens > context_length]
    if long:
        longest = max(each.num_tokens for each in encoded)
        raise ConfigError(
            f"{len(long):,} of {len(encoded):,} demonstrations are longer than policy.context_length {context_length}",
            why=f"the first of them is number {long[0]}, and the longest has {longest:,} tokens with its prompt",
            fix=f"set policy.context_length to {longest} or more, or shorten or remove them",
        )
    return encoded


def packed(examples: Sequence[EncodedExample], *, vocabulary_size: int) -> CompletionBatch:
    """Examples as one batch, each with its prompt.

    Raises:
        RecordError: a token is outside of the vocabulary.
    """
    return pack_completions(
        [each.prompt for each in examples],
        [each.tokens for each in examples],
        group_index=range(len(examples)),
        chosen=[each.chosen for each in examples],
        vocabulary_size=vocabulary_size,
    )


def passes_of(
    examples: Sequence[EncodedExample], *, tokens_max: int, vocabulary_size: int
) -> list[CompletionBatch]:
    """Examples as batches of at most ``tokens_max`` padded tokens each, those of a length together.

    A single example may be longer than that.
    """
    parts: list[list[EncodedExample]] = []
    for each in sorted(examples, key=lambda example: example.num_tokens):
        with_this = [*parts[-1], each] if parts else []
        if with_this and _width(with_this) * len(with_this) <= tokens_max:
            parts[-1] = with_this
        else:
            parts.append([each])
    return [packed(part, vocabulary_size=vocabulary_size) for part in parts]


class EpochDraws:
    """The examples of one step after the other: each of them once an epoch, in an order that is drawn for each."""

    def __init__(
        self, examples: Sequence[EncodedExample], *, batch_size: int, generator: torch.Generator
    ) -> None:
        self._examples = examples
        self._batch_size = batch_size
        self._generator = generator
        self._left: list[int] = []

    def next(self) -> list[EncodedExample]:
        """The examples of the next step; the last ones of an epoch may be fewer."""
        if not self._left:
            order: list[int] = torch.randperm(len(self._examples), generator=self._generator).numpy().tolist()
            self._left = order
        drawn, self._left = self._left[: self._batch_size], self._left[self._batch_size :]
        return [self._examples[index] for index in drawn]


def _width(examples: Sequence[EncodedExample]) -> int:
    """Tokens of a row when these are padded together."""
    return max(len(each.prompt) for each in examples) + max(len(each.tokens) for each in examples)
