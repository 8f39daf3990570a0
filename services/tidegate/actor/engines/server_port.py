"""The port that the server engine requires of a dialect: streamed tokens, and weights replaced during a pause.

A dialect is a thin translation to one product's HTTP interface. ``server_engine`` makes all decisions, the same for all
products: the order of an update, correct versions, probes and rollbacks.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from tidegate.core.errors import TidegateError
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import Sampler

# How a stream ends. ``abort``: the server aborted the request.
PieceFinish = Literal["stop", "length", "abort"]


class ServerRefusalError(TidegateError):
    """The server answered and refused or failed the request."""

    status = "FAILED_PRECONDITION"


# Servers name the fields "version", "start" and "end".
class LabelSpan(msgspec.Struct, frozen=True, rename={"label": "version", "stop": "end"}):
    """Tokens ``[start, stop)`` of a request, which the server reports as generated under its weights ``label``."""

    label: str
    start: int
    stop: int


class TokenPiece(msgspec.Struct, frozen=True):
    """One event of a request: the next tokens, each with its logprob under its sampler.

    ``spans``: the versions of all tokens of the request so far, where the server reports them.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    spans: tuple[LabelSpan, ...] = ()
    finish: PieceFinish | None = None


class ServerRequest(msgspec.Struct, frozen=True):
    """A context to continue; ``cache_key``: only requests with the same key share prefixes.

    The server has one random generator: one per request costs vLLM speed, and its build for CPUs crashes when it reads
    such a request again after a pause ("CPU Generator does not use offset", 0.32).
    """

    request_id: str
    context: tuple[int, ...]
    sampler: Sampler
    stop_ids: frozenset[int]
    cache_key: str


class ProbeAnswer(msgspec.Struct, frozen=True):
    """Logprobs of a prompt's tokens from its second on, and one sampled next token with its logprob."""

    prompt_logprobs: tuple[float, ...]
    token: int
    logprob: float


class ServerDialect(Protocol):
    """One server. Every call is bounded by a deadline.

    ``labels_pieces``: every piece carries ``spans``, so that no token gets a wrong version.

    All calls raise UnavailableError when the server cannot be reached or does not answer in time, and
    ServerRefusalError when it refuses.
    """

    @property
    def labels_pieces(self) -> bool:
        """Whether the server reports the weights of each piece, and not only of whole requests."""
        ...

    async def check(self, *, context_length: int) -> None:
        """Check that the server is ready and supports what the engine needs.

        Raises:
            UnavailableError: it is not ready.
            ConfigError: it is ready, but was started with unsuitable settings.
        """
        ...

    def stream(self, request: ServerRequest) -> AbstractAsyncContextManager[AsyncIterator[TokenPiece]]:
        """Generate; leaving the context ends the request on the server."""
        ...

    async def pause(self) -> None:
        """Pause generation; requests in flight stay."""
        ...

    async def load(self, folder: Path, *, label: str) -> None:
        """Replace the weights in place by those of a folder (absolute path) and label them ``label``."""
        ...

    async def resume(self) -> None:
        """Generate again; a server that is not paused stays as it is."""
        ...

    async def label(self) -> str:
        """The label of the weights that it serves."""
        ...

    async def tokens_made(self) -> int | None:
        """Tokens generated for streams since the server started, arrived or not; None if it does not count them."""
        ...

    async def probe(self, tokens: Sequence[int], *, temperature: float) -> ProbeAnswer:
        """Compute a prompt's logprobs without a cache, and sample the next token."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def label_of(version: PolicyVersion) -> str:
    """The label of a version's weights on a server."""
    return str(version)
