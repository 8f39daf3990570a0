"""What the engine of servers asks of a server's dialect: tokens as they are made, and weights replaced in a pause.

A dialect is a thin translation to one product's HTTP interface. It decides nothing: the order of an update, honest
versions, probing and rolling back are ``server_engine``'s, and the same for all products.
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
    """The server is there and answered that it will not, or could not, do what was asked."""

    status = "FAILED_PRECONDITION"


# Servers name the fields "version", "start" and "end".
class LabelSpan(msgspec.Struct, frozen=True, rename={"label": "version", "stop": "end"}):
    """Tokens ``[start, stop)`` of a request, which the server reports as generated under its weights ``label``."""

    label: str
    start: int
    stop: int


class TokenPiece(msgspec.Struct, frozen=True):
    """What arrived of a request at once: the next tokens, each with its logprob under its sampler.

    ``spans``: the server's own account of all tokens of the request up to here, where it gives one.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    spans: tuple[LabelSpan, ...] = ()
    finish: PieceFinish | None = None


class ServerRequest(msgspec.Struct, frozen=True):
    """A context to continue; ``cache_key``: prefixes are shared among requests with the same one, and no others.

    Servers draw from a generator of their own: one for each request costs vLLM speed, and its build for CPUs dies when
    such a request is read again after a pause ("CPU Generator does not use offset", 0.32).
    """

    request_id: str
    context: tuple[int, ...]
    sampler: Sampler
    stop_ids: frozenset[int]
    cache_key: str


class ProbeAnswer(msgspec.Struct, frozen=True):
    """Logprobs of a prompt's tokens from its second on, and a token sampled behind it with its logprob."""

    prompt_logprobs: tuple[float, ...]
    token: int
    logprob: float


class ServerDialect(Protocol):
    """One server. Every call is bounded by a deadline.

    ``labels_pieces``: every piece carries ``spans``, so that no token can be taken for another version's.

    All calls raise UnavailableError when the server cannot be reached or does not answer in time, and
    ServerRefusalError when it refuses.
    """

    @property
    def labels_pieces(self) -> bool:
        """Whether it names the weights of each piece, and not of whole requests alone."""
        ...

    async def check(self, *, context_length: int) -> None:
        """Whether it is ready, and can do what the engine will ask of it.

        Raises:
            UnavailableError: it is not ready.
            ConfigError: it is, and was started with settings that will not do.
        """
        ...

    def stream(self, request: ServerRequest) -> AbstractAsyncContextManager[AsyncIterator[TokenPiece]]:
        """Generate; leaving the context ends the request on the server."""
        ...

    async def pause(self) -> None:
        """Pause generation; requests in flight stay."""
        ...

    async def load(self, folder: Path, *, label: str) -> None:
        """Replace the weights, in place, by those of a folder (absolute), and call them ``label``."""
        ...

    async def resume(self) -> None:
        """Generate again; a server that is not paused stays as it is."""
        ...

    async def label(self) -> str:
        """What it calls the weights that it serves."""
        ...

    async def tokens_made(self) -> int | None:
        """Tokens generated for streams since it was started, whether they arrived or not; None if it does not count."""
        ...

    async def probe(self, tokens: Sequence[int], *, temperature: float) -> ProbeAnswer:
        """Read a prompt, and sample one token behind it; nothing of it comes from a cache."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def label_of(version: PolicyVersion) -> str:
    """What a server calls the weights of a version."""
    return str(version)
