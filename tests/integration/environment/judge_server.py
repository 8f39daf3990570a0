"""A judge that answers from a script, behind the address of an OpenAI-style API."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


class ScriptedJudge:
    """Answers each request with the next item: a text with a grade, a response, or an endless wait."""

    def __init__(self) -> None:
        self.script: list[str | web.Response | None] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.under_way = 0
        self.under_way_max = 0
        self.base_url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        self.keys.append(request.headers.get("Authorization", ""))
        self.under_way += 1
        self.under_way_max = max(self.under_way, self.under_way_max)
        try:
            await asyncio.sleep(0.01)
            step = self.script.pop(0) if self.script else "Score: 5"
            if step is None:
                await asyncio.sleep(3600)
            if isinstance(step, web.Response):
                return step
            return web.json_response({"choices": [{"message": {"role": "assistant", "content": step}}]})
        finally:
            self.under_way -= 1


@asynccontextmanager
async def serving_judge() -> AsyncGenerator[ScriptedJudge, None]:
    """The judge, listening on loopback."""
    judge = ScriptedJudge()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", judge.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    judge.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield judge
    finally:
        await runner.cleanup()
