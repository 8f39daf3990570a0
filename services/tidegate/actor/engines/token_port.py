"""The port of all engines that write tokens: a context in, its continuation out, under a policy that may change.

An engine knows nothing of tasks, groups, turns or streams. It receives a context (the prompt, earlier tokens, the
environment's replies) and appends to it. A rollout that another actor started, and the next turn of an episode, are
longer contexts. The engine appends to a ``Continuation``, which the caller owns: a call that ends early (a drain, a
cut, an engine that died) loses no token.

The engine reads ``EngineControl.newest`` between tokens and swaps policies without dropping requests in flight. All of
it lives in one event loop; an engine that computes does so in a thread of its own and appends from the loop.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec
import numpy as np

from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Array, PolicySnapshot, Sampler, Task, VersionSpan
from tidegate.models.tokenizer import Tokenizer

FinishReason = Literal["stop", "length"]


class Continuation:
    """A growing continuation: tokens, the logprob of each under its sampler, and the versions that chose them.

    Bounded by ``TokenRequest.sampler.max_new_tokens``. Only the engine appends; any task may read between two awaits.
    """

    __slots__ = ("_marks", "logprobs", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self._marks: list[tuple[int, PolicyVersion]] = []

    def append(self, tokens: Sequence[int], logprobs: Sequence[float], version: PolicyVersion) -> None:
        """``version`` chose these tokens, after all before them."""
        assert len(tokens) == len(logprobs), "each token has its logprob"
        if tokens and (not self._marks or self._marks[-1][1] != version):
            self._marks.append((len(self.tokens), version))
        self.tokens.extend(tokens)
        self.logprobs.extend(logprobs)

    def spans(self) -> tuple[VersionSpan, ...]:
        """Which version chose which positions, from 0 (I5); empty without tokens."""
        stops = [*(start for start, _ in self._marks), len(self.tokens)][1:]
        return tuple(
            VersionSpan(version, start, stop)
            for (start, version), stop in zip(self._marks, stops, strict=True)
        )

    def arrays(self) -> tuple[Array, Array]:
        """Tokens (T,) int32 and their logprobs (T,) float32."""
        return np.array(self.tokens, dtype=np.int32), np.array(self.logprobs, dtype=np.float32)


class TokenRequest(msgspec.Struct, frozen=True):
    """A context to continue.

    ``request_id``: unique among those in flight. ``context``: ids of all tokens before the next one.
    ``sampler.max_new_tokens``: maximum length of the continuation. ``stop_ids``: tokens that end it. ``seed``: where
    the engine draws by request; equal requests under one version then repeat. Waiting requests with equal contexts are
    read once (a group's samples share their prompt).
    """

    request_id: str
    context: tuple[int, ...]
    sampler: Sampler
    stop_ids: frozenset[int]
    seed: int = 0


class TokenEngine(Protocol):
    """Writes many continuations at once; a finished one frees its slot for the next.

    At most ``slots`` continuations run at a time, others wait; the caller bounds the number of requests.
    """

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        ...

    @property
    def context_length(self) -> int:
        """Tokens of a context and its continuation together."""
        ...

    def check_policy(self, snapshot: PolicySnapshot) -> None:
        """Whether this model can serve a policy.

        Raises:
            RecordError: names or shapes of the tensors do not fit; the message names the first that does not.
        """
        ...

    def check_task(self, task: Task) -> None:
        """Check that this engine supports a task's sampler and length.

        Raises:
            TidegateError: it cannot; the message gives the reason.
        """
        ...

    async def run(self) -> None:
        """The engine's own loop, a loop of the service: swaps policies and writes, until ``EngineControl.stop``.

        Raises:
            TidegateError: the engine is broken; the service drains.
        """
        ...

    async def generate(self, request: TokenRequest, written: Continuation) -> FinishReason:
        """Append to ``written`` until a stop token or ``max_new_tokens``; cancelling it frees the slot at once.

        Raises:
            RecordError: context and continuation do not fit the model.
            UnavailableError: the engine stops, or lost its server; the tokens so far stay and can be resumed.
        """
        ...

    async def close(self) -> None:
        """Release the engine's resources."""
        ...
