"""HTTP to an inference server: calls that end by a deadline, and streams of server-sent events."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import aiohttp
import msgspec

from tidegate.actor.engines.server_port import ServerRefusalError
from tidegate.core.errors import DeadlineError, UnavailableError
from tidegate.core.json_text import NOT_JSON

AnswerT = TypeVar("AnswerT")

# One event of a stream; some servers repeat all tokens so far in each, at some 50 bytes a token.
EVENT_BYTES_MAX = 64 << 20
# Characters of a refusal's body that an error contains.
DETAIL_CHARS_MAX = 400
DONE = b"[DONE]"


class AnyAnswer(msgspec.Struct):
    """A JSON object whose fields are ignored."""


class ServerHttp:
    """One server's connections: as many as there are streams, and a few for control calls; closed by ``close``."""

    def __init__(self, url: str, *, name: str, num_streams: int, deadline_s: float, stall_s: float) -> None:
        """``name``: of the product, for errors. ``deadline_s``: of a call without its own. ``stall_s``: of streams."""
        self._url = url.rstrip("/")
        self._name = name
        self._deadline_s = deadline_s
        self._stall_s = stall_s
        self._connections_max = num_streams + 8
        self._session: aiohttp.ClientSession | None = None

    async def get_text(self, path: str) -> str:
        """The text of a page.

        Raises:
            UnavailableError: no answer. ServerRefusalError: an error status.
        """
        return (await self._call("GET", path, None, self._deadline_s)).decode(errors="replace")

    async def get(self, path: str, answer: type[AnswerT]) -> AnswerT:
        """Return a JSON answer, decoded. Raises as ``get_text`` does."""
        return decode(await self._call("GET", path, None, self._deadline_s), answer, what=path)

    async def post(
        self, path: str, body: Mapping[str, Any], answer: type[AnswerT], *, deadline_s: float | None = None
    ) -> AnswerT:
        """Send JSON and return the answer, decoded. Raises as ``get_text`` does."""
        payload = await self._call("POST", path, body, deadline_s or self._deadline_s)
        return decode(payload, answer, what=path)

    @asynccontextmanager
    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[AsyncIterator[bytes]]:
        """Send JSON and yield the data of each event of the answer, without the end marker.

        Raises:
            UnavailableError: the connection broke, or nothing came for the stall deadline.
            ServerRefusalError: the request was refused.
        """
        timeout = aiohttp.ClientTimeout(total=None, connect=self._deadline_s, sock_read=self._stall_s)
        try:
            async with self._opened().post(f"{self._url}{path}", json=body, timeout=timeout) as response:
                if response.status != 200:
                    raise self._refusal(path, response.status, await response.read())
                yield self._events_of(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unavailable(path, error) from error

    async def close(self) -> None:
        """Close all connections; requests in flight end on the server as well."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:  # needs a running event loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections_max),
                json_serialize=lambda body: msgspec.json.encode(body).decode(),
            )
        return self._session

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None, deadline_s: float) -> bytes:
        try:
            async with asyncio.timeout(deadline_s):
                async with self._opened().request(method, f"{self._url}{path}", json=body) as response:
                    payload = await response.read()
                    if response.status != 200:
                        raise self._refusal(path, response.status, payload)
                    return payload
        except TimeoutError as error:
            raise DeadlineError(
                f"{self._name} did not answer {path} within {deadline_s:g} s",
                why="it computes, loads, or hangs",
                fix="raise the deadlines of actor.server if it is only slow",
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._unavailable(path, error) from error

    async def _events_of(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        buffer = b""
        async for chunk in response.content.iter_any():
            buffer += chunk
            *events, buffer = buffer.split(b"\n\n")
            if len(buffer) > EVENT_BYTES_MAX:
                raise UnavailableError(f"{self._name} sent an event longer than {EVENT_BYTES_MAX} bytes")
            for event in events:
                data = event.strip().removeprefix(b"data:").strip()
                if data and data != DONE:
                    yield data

    def _refusal(self, path: str, status: int, payload: bytes) -> ServerRefusalError:
        return ServerRefusalError(
            f"{self._name} answered {path} with {status}",
            why=payload.decode(errors="replace").strip()[:DETAIL_CHARS_MAX],
        )

    def _unavailable(self, path: str, error: BaseException) -> UnavailableError:
        return UnavailableError(
            f"The connection to {self._name} failed at {path}",
            why=f"{type(error).__name__}: {error}" if str(error) else type(error).__name__,
            fix="read the server's log",
        )


def decode(payload: bytes, answer: type[AnswerT], *, what: str) -> AnswerT:
    """Decode JSON as a type; ``what``: the request, for errors.

    Raises:
        ServerRefusalError: the answer has another type.
    """
    try:
        return msgspec.json.decode(payload, type=answer)
    except NOT_JSON as error:
        raise ServerRefusalError(
            f"The inference server sent an unknown answer to {what}",
            why=str(error),
            fix="use the version of the server that docs/engines.md names",
        ) from error
