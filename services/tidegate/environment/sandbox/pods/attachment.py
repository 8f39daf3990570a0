"""A connection to the runner in a pod, over the attach subresource of the Kubernetes API.

It is made while the pod waits, which takes most of the time of a run away from it. The runner's stdin ends with the
connection, and the runner with its stdin: pods of a worker that dies end at once.
"""

import asyncio
from typing import Any

import msgspec

from tidegate.core.errors import UnavailableError
from tidegate.environment.sandbox.zygote import frames
from tidegate.runtime.kubernetes_api import error_of

_PROTOCOL = "v4.channel.k8s.io"
_STDIN, _STDOUT, _ERROR = 0, 1, 3
_CHUNK_BYTES = 32 << 10
_ERROR_BYTES_MAX = 4096
Answer = tuple[dict[str, Any], list[bytes]]


class Attacher:
    """Connects to runners; its caller bounds the number of connections."""

    def __init__(self, client: Any, *, connect_s: float, part_bytes_max: int) -> None:
        """``client``: a ``WsApiClient`` of the official package, closed with this, as are its connections.

        ``connect_s`` bounds connecting, ``part_bytes_max`` a part of an answer.
        """
        self._client = client
        self._connect_s = connect_s
        self._part_bytes_max = part_bytes_max

    async def attach(self, path: str) -> "Attachment":
        """Connect to the runner of the pod at ``path``.

        Raises:
            TidegateError: the API server refuses, or does not answer.
        """
        from aiohttp import ClientError, WSServerHandshakeError

        what = f"attaching to {path}"
        try:
            async with asyncio.timeout(self._connect_s):
                _, url, headers, _, _ = await self._client.param_serialize(
                    "GET",
                    f"{path}/attach",
                    query_params=[("container", "program"), ("stdin", "true"), ("stdout", "true")],
                    header_params={"sec-websocket-protocol": _PROTOCOL},
                    auth_settings=["BearerToken"],
                )
                socket = await (
                    await self._client.request("GET", url, headers=headers, _preload_content=False)
                )
        except WSServerHandshakeError as error:
            raise error_of(error.status, error.message, what) from error
        except (TimeoutError, ClientError, OSError) as error:
            raise UnavailableError(
                "The Kubernetes API does not answer", why=f"{what}: {str(error) or type(error).__name__}"
            ) from error
        return Attachment(socket, part_bytes_max=self._part_bytes_max)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


class Attachment:
    """One connection, for one request and its answer."""

    def __init__(self, socket: Any, *, part_bytes_max: int) -> None:
        """``socket``: an open WebSocket, closed with this."""
        self._socket = socket
        self._part_bytes_max = part_bytes_max
        self._received = bytearray()
        self._error = b""
        self._answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.get_running_loop().create_task(self._read())

    def has_ended(self) -> bool:
        """Whether the connection has ended."""
        return self._reading.done()

    async def ended(self) -> None:
        """Wait for the end of the connection; the caller may give up."""
        await asyncio.wait([self._reading])

    async def exchange(self, request: bytes, *, deadline_s: float) -> Answer:
        """Send ``request``; the head and the parts of the runner's answer.

        Raises:
            UnavailableError: the connection ended before the answer did, or nothing came within ``deadline_s``.
        """
        from aiohttp import ClientError

        try:
            async with asyncio.timeout(deadline_s):
                for start in range(0, len(request), _CHUNK_BYTES):
                    await self._socket.send_bytes(bytes([_STDIN]) + request[start : start + _CHUNK_BYTES])
                await asyncio.wait([self._answered, self._reading], return_when=asyncio.FIRST_COMPLETED)
            if self._answered.done():
                return self._answered.result()
            why = _message(self._error) or "the connection ended without an answer"
        except TimeoutError:
            why = "its deadline passed"
        except (ClientError, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
        raise UnavailableError("A run in a sandbox pod was lost", why=why, fix="run it again")

    async def close(self) -> None:
        """End the connection, and the runner with it."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        if self._answered.done():
            self._answered.exception()  # it may have failed after its caller left
        await self._socket.close()

    async def _read(self) -> None:
        """Read until the answer is complete, or cannot become one, or the connection ends."""
        async for message in self._socket:
            if not isinstance(message.data, bytes) or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == _ERROR:
                self._error = (self._error + data)[:_ERROR_BYTES_MAX]
            if channel != _STDOUT or self._answered.done():
                continue
            self._received += data
            try:
                answer = frames.parse(self._received, part_bytes_max=self._part_bytes_max)
            except ValueError as error:
                self._answered.set_exception(error)
                continue
            if answer is not None:
                self._answered.set_result(answer)


def _message(status: bytes) -> str:
    try:
        return str(msgspec.json.decode(status, type=dict[str, Any]).get("message", ""))
    except msgspec.DecodeError:
        return ""
