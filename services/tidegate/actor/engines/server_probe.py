"""Compares a server's logprobs of a fixed prompt with those of this actor's model, after each update.

It catches a server that loaded the wrong weights and reports success. It also catches a server whose logprobs belong to
another sampler than the one it drew from: the probe samples a token at a temperature other than 1.
"""

import math
from collections.abc import Mapping
from typing import Literal

import msgspec
import torch
from torch import Tensor

from tidegate.actor.engines.server_port import ProbeAnswer
from tidegate.core.errors import RecordError
from tidegate.core.records import Array
from tidegate.models.causal_lm import CausalLm

TEMPERATURE = 0.5
PROBE_TOKENS_MAX = 32
# Tokens spread over the vocabulary: unlikely text shows every layer, and a multiplier prime to its size repeats none.
SPREAD = 7919

# A single token's rounding is larger than the mean of many.
SINGLE_TOKEN_ALLOWANCE = 5.0

# Mean difference of logprobs over the probe: docs/engines.md has the measurements.
TOLERANCES: dict[Literal["float32", "bfloat16"], float] = {"float32": 1e-3, "bfloat16": 0.25}


class Expected(msgspec.Struct, frozen=True, eq=False):
    """The policy's logprobs: (P-1,) of the prompt's tokens from the second on, and (V,) of all next tokens."""

    prompt_logprobs: Tensor
    next_logprobs: Tensor


class LocalProbe:
    """This actor's copy of the model, with one version at a time. Only one thread uses it."""

    def __init__(self, model: CausalLm) -> None:
        """``model``: loads the tensors that the learner publishes."""
        self._model = model
        self.tokens = probe_tokens(model.vocabulary_size, context_length=model.context_length)

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Whether the model can load them.

        Raises:
            RecordError: a tensor does not fit.
        """
        self._model.check_arrays(arrays)

    @torch.no_grad()
    def expect(self, arrays: Mapping[str, Array]) -> Expected:
        """Load a policy and read the prompt.

        Raises:
            RecordError: it does not fit.
        """
        self._model.load_arrays(arrays)
        tokens = torch.tensor([self.tokens])
        hidden, _ = self._model(tokens)
        prompt = self._model.next_logprobs(hidden[0, :-1])
        chosen = prompt.gather(1, tokens[0, 1:, None])[:, 0]
        return Expected(chosen, self._model.next_logprobs(hidden[0, -1], temperature=TEMPERATURE))


def probe_tokens(vocabulary_size: int, *, context_length: int) -> tuple[int, ...]:
    """The fixed prompt; it leaves room for one more token."""
    length = min(PROBE_TOKENS_MAX, context_length - 1)
    return tuple((SPREAD * (index + 1)) % vocabulary_size for index in range(length))


def probe_error(expected: Expected, answer: ProbeAnswer) -> float:
    """Mean difference of logprobs, in nats: of the prompt's tokens or of the sampled one, whichever is larger.

    Raises:
        RecordError: the answer is about another prompt or vocabulary.
    """
    if len(answer.prompt_logprobs) != len(expected.prompt_logprobs):
        raise RecordError("The server answered a probe that it was not sent")
    if not 0 <= answer.token < len(expected.next_logprobs):
        raise RecordError(f"The server sampled token {answer.token}, which the model does not have")
    prompt = (torch.tensor(answer.prompt_logprobs) - expected.prompt_logprobs).abs().mean()
    sampled = abs(answer.logprob - float(expected.next_logprobs[answer.token]))
    errors = (float(prompt), sampled / SINGLE_TOKEN_ALLOWANCE)
    return max(errors) if all(map(math.isfinite, errors)) else math.inf
