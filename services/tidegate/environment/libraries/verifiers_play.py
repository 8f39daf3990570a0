"""One episode of an environment of `verifiers` outside of any run: ``python -m`` of this module, for `check --play`.

The policy is a server on loopback that gives every call the same text. A question on standard input, an answer on
standard output.
"""

import asyncio
import time
from typing import Any

from aiohttp import web

from tidegate.core.errors import ConfigError, TidegateError
from tidegate.environment.libraries.verifiers_env import VerifiersEnv
from tidegate.environment.libraries.verifiers_settings import PlayedVerifiers, Seat, VerifiersQuestion
from tidegate.environment.libraries.verifiers_task import row_of
from tidegate.runtime.child_question import answer_question
from tidegate.runtime.own_code.loading import described, make_importable

DEADLINE_S = 120.0
CALLS_MAX = 64
HOST = "127.0.0.1"


class _StubModel:
    """Answers the calls of one episode; more than ``CALLS_MAX`` are refused."""

    def __init__(self, text: str) -> None:
        self.num_calls = 0
        self._text = text

    async def answer(self, request: web.Request) -> web.Response:
        self.num_calls += 1
        if self.num_calls > CALLS_MAX:
            raise web.HTTPBadRequest(reason=f"more than {CALLS_MAX} calls")
        body: dict[str, Any] = {
            "id": f"call-{self.num_calls}",
            "object": "chat.completion",
            "created": 0,
            "model": "stub",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": self._text},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        return web.json_response(body)


def play(question: VerifiersQuestion) -> PlayedVerifiers:
    """Play it.

    Raises:
        TidegateError: the environment cannot be loaded, or its episode fails.
    """
    make_importable(question.files_dir)
    env = VerifiersEnv(question.settings)
    try:
        return asyncio.run(_play(env, question))
    except TidegateError:
        raise
    except Exception as error:  # an environment is third-party code
        raise ConfigError(
            f"An episode of {question.settings.id} failed",
            why=described(error, file=""),
            fix="see its package",
        ) from error


async def _play(env: VerifiersEnv, question: VerifiersQuestion) -> PlayedVerifiers:
    model = _StubModel(question.stub)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        base_url = f"http://{HOST}:{runner.addresses[0][1]}/v1"
        began_s = time.monotonic()
        async with asyncio.timeout(DEADLINE_S):
            verdict = await env.play(
                row_of(env, question.prompt_id), Seat(base_url, api_key="stub"), model="stub"
            )
        took_s = time.monotonic() - began_s
        if not model.num_calls:
            raise ConfigError(
                f"An episode of {question.settings.id} made no call of the policy",
                why="either it ended before, or the environment calls a model of its own",
                fix="name an environment whose episodes are played by the model that it is given",
            )
        return PlayedVerifiers(verdict, model.num_calls, took_s)
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    answer_question(VerifiersQuestion, play)
