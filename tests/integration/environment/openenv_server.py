"""A server that speaks OpenEnv's protocol: an environment that counts down, behind /schema and /ws.

Written after openenv 0.10; `test_openenv_library.py` holds the client to the library's own server.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import WSMsgType, web

SCHEMA = {
    "action": {
        "properties": {"metadata": {"type": "object"}, "take": {"type": "integer"}},
        "required": ["take"],
    },
    "observation": {},
    "state": {},
}


class CountdownServer:
    """``reset`` sets the count to the seed; a step takes from it, and what it took is its reward, to 0."""

    def __init__(self) -> None:
        self.resets: list[dict[str, Any]] = []
        self.num_open = 0
        self.num_ended = 0
        self.room = 8
        self.is_away = False
        self.url = ""
        self.sockets: list[web.WebSocketResponse] = []

    async def schema(self, request: web.Request) -> web.Response:
        return web.json_response(SCHEMA)

    async def session(self, request: web.Request) -> web.WebSocketResponse:
        if self.is_away:
            raise web.HTTPServiceUnavailable
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.num_open >= self.room:
            await self._send(socket, "error", {"message": "full", "code": "CAPACITY_REACHED"})
            return socket
        self.num_open += 1
        self.sockets.append(socket)
        try:
            await self._serve(socket)
        finally:
            self.num_open -= 1
        return socket

    async def _serve(self, socket: web.WebSocketResponse) -> None:
        count = 0
        async for message in socket:
            if message.type != WSMsgType.TEXT:
                break
            asked = json.loads(message.data)
            if asked["type"] == "reset":
                self.resets.append(asked["data"])
                count = asked["data"]["seed"]
                await self._observe(socket, count, reward=None, done=False)
                continue
            if asked["type"] == "close":
                self.num_ended += 1
                return
            take = asked["data"]["take"]
            if take < 0:
                await self._send(socket, "error", {"message": "negative", "code": "VALIDATION_ERROR"})
            elif take == 13:
                await self._send(socket, "error", {"message": "a defect", "code": "EXECUTION_ERROR"})
            elif take == 99:
                await socket.send_str("no JSON")
            elif take == 100:
                await socket.send_str(json.dumps({"type": "observation", "data": {"x": "y" * 200_000}}))
            elif take == 101:
                continue
            elif take == 102:
                return
            else:
                count -= take
                await self._observe(socket, count, reward=float(take), done=count <= 0)

    async def _observe(
        self, socket: web.WebSocketResponse, count: int, *, reward: float | None, done: bool
    ) -> None:
        observation: dict[str, Any] = {"left": f"{count} left", "metadata": {}}
        await self._send(socket, "observation", {"observation": observation, "reward": reward, "done": done})

    async def _send(self, socket: web.WebSocketResponse, kind: str, data: dict[str, Any]) -> None:
        await socket.send_str(json.dumps({"type": kind, "data": data}))


@asynccontextmanager
async def serving_countdown() -> AsyncGenerator[CountdownServer]:
    """The server, listening on loopback."""
    server = CountdownServer()
    app = web.Application()
    app.router.add_get("/schema", server.schema)
    app.router.add_get("/ws", server.session)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
