"""The client of OpenEnv servers: a session on a WebSocket, for the code of a conversation, which blocks.

One thread of the process answers the servers' pings for all sessions, however long a policy thinks between two turns. A
session has at most one question in flight; each has a deadline, and an answer a bound.
"""

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar, cast

import aiohttp
import msgspec

from tidegate.core.errors import DeadlineError, RecordError, UnavailableError

T = TypeVar("T")
# A server answers once to a message, so that more than this many unread ones are a mistake of the server.
UNREAD_MAX = 8
CLOSE_WAIT_S = 1.0


class OpenEnvFaultError(RecordError):
    """A server answered with an error; ``code`` as in OpenEnv: VALIDATION_ERROR, EXECUTION_ERROR, ..."""

    def __init__(self, code: str, message: str, *, what: str) -> None:
        super().__init__(what, why=f"{code}: {message}" if code else message)
        self.code = code
        self.message = message


class OpenEnvServer:
    """One server; sessions of it are independent."""

    def __init__(self, url: str, *, deadline_s: float, bytes_max: int, token: str = "") -> None:
        """Connects to nothing. ``token``: sent as a bearer token."""
        self.url = url.rstrip("/")
        self._deadline_s = deadline_s
        self._bytes_max = bytes_max
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="openenv", daemon=True).start()
        self._client: aiohttp.ClientSession | None = None

    def schema(self) -> Mapping[str, Any]:
        """The JSON schema of its actions.

        Raises:
            UnavailableError: it cannot be reached.
            RecordError: it is no OpenEnv server.
        """
        return self.wait(self._schema())

    def open(self) -> "OpenEnvSession":
        """A session, not reset yet.

        Raises:
            UnavailableError: it cannot be reached.
        """
        return self.wait(self._open())

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the thread do what nothing waits for."""
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, answer: Coroutine[Any, Any, T]) -> T:
        """An answer, within the deadline. Raises as ``open``."""
        return asyncio.run_coroutine_threadsafe(self._within(answer), self._loop).result()

    async def _within(self, answer: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(self._deadline_s):
                return await answer
        except TimeoutError as error:
            raise DeadlineError(
                f"{self.url} did not answer within {self._deadline_s:g} s",
                fix="raise workload.env_kwargs.deadline_s and environment.score_deadline_s, or see its log",
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise UnavailableError(
                f"No OpenEnv server answers at {self.url}",
                why=str(error),
                fix="start it, or correct workload.env",
            ) from error

    def _session(self) -> aiohttp.ClientSession:
        if self._client is None:
            # No proxy of the environment: an address of a run file is meant as it is.
            self._client = aiohttp.ClientSession(headers=self._headers)
        return self._client

    async def _schema(self) -> Mapping[str, Any]:
        async with self._session().get(f"{self.url}/schema") as response:
            body = await response.content.read(self._bytes_max)
            if response.status != 200:
                raise RecordError(
                    f"{self.url}/schema answered {response.status}",
                    why=body[:200].decode(errors="replace"),
                    fix="name the address of an OpenEnv server",
                )
        schema = _object(body).get("action")
        if not isinstance(schema, dict):
            raise RecordError(
                f"{self.url}/schema describes no action", fix="name the address of an OpenEnv server"
            )
        return cast("dict[str, Any]", schema)

    async def _open(self) -> "OpenEnvSession":
        address = "ws" + self.url.removeprefix("http") + "/ws"
        socket = await self._session().ws_connect(address, max_msg_size=self._bytes_max)
        return OpenEnvSession(self, socket)


class OpenEnvSession:
    """An episode on a server; ``close`` it. Made in the server's thread."""

    def __init__(self, server: OpenEnvServer, socket: aiohttp.ClientWebSocketResponse) -> None:
        """``OpenEnvServer.open`` makes it."""
        self._server = server
        self._socket = socket
        self._answers: asyncio.Queue[bytes | None] = asyncio.Queue(UNREAD_MAX + 1)
        self._reading = asyncio.create_task(self._read())

    def ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The data of the answer to a ``reset`` or ``step``.

        Raises:
            UnavailableError: the server is gone, or has no room; the episode is lost.
            OpenEnvFaultError: it answered with an error.
            RecordError: its answer is none.
        """
        return self._server.wait(self._ask(kind, data))

    def close(self) -> None:
        """End the session, without waiting for the server."""
        self._server.begin(self._close())

    async def _read(self) -> None:
        """Until the end of the connection; it also answers pings."""
        try:
            async for message in self._socket:
                # Of a message beyond its bound, and of a broken connection, aiohttp tells as of a message.
                if not isinstance(message.data, str | bytes) or self._answers.qsize() >= UNREAD_MAX:
                    break
                data = message.data
                self._answers.put_nowait(data.encode() if isinstance(data, str) else data)
        finally:
            self._answers.put_nowait(None)

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        url = self._server.url
        # A server without room says so and closes: its word is read although this one cannot be sent.
        with suppress(aiohttp.ClientError, OSError):
            await self._socket.send_str(msgspec.json.encode({"type": kind, "data": data}).decode())
        answer = await self._answers.get()
        if answer is None:
            self._answers.put_nowait(None)
            raise UnavailableError(f"{url} ended the session of an episode", fix="see its log")
        found = _object(answer)
        inner = found.get("data")
        content = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
        if found.get("type") == "error":
            code, message = str(content.get("code", ""))[:64], str(content.get("message", ""))[:500]
            if code == "CAPACITY_REACHED":
                raise UnavailableError(
                    f"{url} has no room for another session",
                    why=message,
                    fix="raise max_concurrent_envs of the server, or lower environment.max_sessions",
                )
            raise OpenEnvFaultError(code, message, what=f"{url} failed on {kind}")
        return content

    async def _end(self) -> None:
        await self._socket.send_str('{"type":"close"}')
        await asyncio.wait({self._reading})

    async def _close(self) -> None:
        # As OpenEnv's own client does: a server that finds the connection closed instead may log an error each time.
        for ending in (self._end, self._socket.close):
            with suppress(TimeoutError, OSError, aiohttp.ClientError):
                async with asyncio.timeout(CLOSE_WAIT_S):
                    await ending()
        self._reading.cancel()


def _object(data: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        RecordError: it is none.
    """
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RecordError("An OpenEnv server answered no JSON object", why=str(error)) from error
