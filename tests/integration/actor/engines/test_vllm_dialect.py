"""vLLM's interface as recorded from version 0.32: how its client reads complete, broken and invalid answers."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tidegate.actor.engines.server_http import ServerHttp
from tidegate.actor.engines.server_port import LabelSpan, ServerRefusalError, ServerRequest, TokenPiece
from tidegate.actor.engines.vllm_dialect import VllmDialect
from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.core.records import Sampler

pytestmark = pytest.mark.integration

REQUEST = ServerRequest("r1", (3, 4, 5, 6), Sampler(max_new_tokens=2), frozenset({1}), "7")

FIRST = (
    b'data: {"request_id":"generate-tokens-r1","usage":null,"output_mode":"tokens","choices":[{"index":0,'
    b'"finish_reason":null,"stop_reason":null,"token_ids":[29],"routed_experts":null,"sampling_mask":null,'
    b'"weight_versions":null,"logprobs":{"content":[{"token_id":29,"logprob":-4.134380340576172,"rank":25,'
    b'"top_logprobs":[{"token_id":29,"logprob":-4.134380340576172,"rank":25}]}]}}]}\n\n'
)
LAST = (
    b'data: {"request_id":"generate-tokens-r1","usage":null,"output_mode":"tokens","choices":[{"index":0,'
    b'"finish_reason":"length","stop_reason":null,"token_ids":[21],"routed_experts":null,"sampling_mask":null,'
    b'"weight_versions":[{"version":"0-a@3","start":0,"end":2}],"logprobs":{"content":[{"token_id":21,'
    b'"logprob":-4.09853458404541,"rank":21,"top_logprobs":[]}]}}]}\n\n'
)
DONE = b"data: [DONE]\n\n"
BROKEN = (
    b'data: {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError",'
    b' "param": null, "code": 500}}\n\n'
)
UNLOGGED = b'data: {"choices":[{"index":0,"finish_reason":null,"token_ids":[29],"logprobs":null}]}\n\n'
PROBE: dict[str, Any] = {
    "request_id": "generate-tokens-p",
    "usage": {"prompt_tokens": 3, "total_tokens": 4, "completion_tokens": 1},
    "prompt_logprobs": [
        None,
        {"4": {"logprob": -4.306331157684326, "rank": 51, "decoded_token": None}},
        {"5": {"logprob": -3.9167981147766113, "rank": 4, "decoded_token": None}},
    ],
    "choices": [
        {
            "index": 0,
            "finish_reason": "length",
            "token_ids": [4],
            "weight_versions": [{"version": "default", "start": 0, "end": 1}],
            "logprobs": {"content": [{"token_id": 4, "logprob": -4.25, "rank": 1, "top_logprobs": []}]},
        }
    ],
}
METRICS = """\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="tiny"} 5.0
vllm:generation_tokens_total{engine="1",model_name="tiny"} 1.2e+03
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 12.0
"""


class Plain(msgspec.Struct, frozen=True):
    """A whole answer."""

    text: str
    status: int = 200


class Recorded:
    """Answers by path; records the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, Plain | bytes] = {
            "/health": Plain(""),
            "/v1/models": Plain(json.dumps({"object": "list", "data": [{"id": "m", "max_model_len": 512}]})),
            "/weight_info": Plain(json.dumps({"weight_version": "default"})),
            "/metrics": Plain(METRICS),
            "/pause": Plain(json.dumps({"status": "paused"})),
            "/resume": Plain(json.dumps({"status": "resumed"})),
            "/collective_rpc": Plain(json.dumps({"results": [None]})),
            "/update_weight_version": Plain(json.dumps({"success": True, "new_version": "0-a@3"})),
        }
        self.asked: list[tuple[str, Any]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.path_qs, body))
        answer = self.answers.get(request.path, Plain("Not Found", 404))
        if isinstance(answer, Plain):
            return web.Response(text=answer.text, status=answer.status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        # In the middle of an event, as networks do.
        half = len(answer) // 2
        await response.write(answer[:half])
        await response.write(answer[half:])
        return response


@asynccontextmanager
async def at(recorded: Recorded, *, deadline_s: float = 5.0) -> AsyncGenerator[VllmDialect]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", recorded.answer)
    server = TestServer(app)
    await server.start_server()
    http = ServerHttp(
        str(server.make_url("")), name="vLLM", num_streams=2, deadline_s=deadline_s, stall_s=5.0
    )
    dialect = VllmDialect(http, cache_on_swap="recompute", update_deadline_s=5.0)
    try:
        yield dialect
    finally:
        await dialect.close()
        await server.close()


async def read(dialect: VllmDialect) -> list[TokenPiece]:
    async with dialect.stream(REQUEST) as pieces:
        return [piece async for piece in pieces]


async def test_a_stream_has_tokens_logprobs_and_finally_labels() -> None:
    recorded = Recorded()
    recorded.answers["/inference/v1/generate"] = FIRST + LAST + DONE
    async with at(recorded) as dialect:
        assert await read(dialect) == [
            TokenPiece([29], [-4.134380340576172]),
            TokenPiece([21], [-4.09853458404541], (LabelSpan("0-a@3", 0, 2),), "length"),
        ]
    [(_, body)] = recorded.asked
    assert body["token_ids"] == [3, 4, 5, 6]
    assert body["cache_salt"] == "7"
    assert body["sampling_params"]["stop_token_ids"] == [1]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (FIRST + BROKEN + DONE, UnavailableError),
        (UNLOGGED + DONE, ServerRefusalError),
        (b"data: {]\n\n", ServerRefusalError),
        (Plain('{"error":{"message":"too long"}}', 400), ServerRefusalError),
    ],
)
async def test_an_invalid_stream_is_an_error(answer: bytes | Plain, error: type[Exception]) -> None:
    recorded = Recorded()
    recorded.answers["/inference/v1/generate"] = answer
    async with at(recorded) as dialect:
        with pytest.raises(error):
            await read(dialect)


async def test_an_update_pauses_with_requests_kept_loads_a_folder_and_names_it(tmp_path: Path) -> None:
    recorded = Recorded()
    async with at(recorded) as dialect:
        await dialect.pause()
        await dialect.load(tmp_path, label="0-a@3")
        await dialect.resume()
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path)}}
    assert recorded.asked == [
        ("/pause?mode=keep&clear_cache=true", {}),
        ("/collective_rpc", reload),
        ("/update_weight_version", {"new_version": "0-a@3"}),
        ("/resume", {}),
    ]


async def test_a_load_that_fails_is_a_refusal(tmp_path: Path) -> None:
    recorded = Recorded()
    recorded.answers["/collective_rpc"] = Plain(
        json.dumps({"error": {"message": "Call to collective_rpc method failed", "code": 500}}), 500
    )
    async with at(recorded) as dialect:
        with pytest.raises(ServerRefusalError, match="collective_rpc"):
            await dialect.load(tmp_path, label="0-a@3")


async def test_the_probes_token_is_not_counted_for_a_request() -> None:
    recorded = Recorded()
    recorded.answers["/inference/v1/generate"] = Plain(json.dumps(PROBE))
    async with at(recorded) as dialect:
        assert await dialect.tokens_made() == 1205
        answer = await dialect.probe((3, 4, 5), temperature=0.5)
        assert answer.prompt_logprobs == (-4.306331157684326, -3.9167981147766113)
        assert (answer.token, answer.logprob) == (4, -4.25)
        assert await dialect.tokens_made() == 1204


async def test_a_server_without_statistics_counts_nothing() -> None:
    recorded = Recorded()
    recorded.answers["/metrics"] = Plain("# nothing\n")
    async with at(recorded) as dialect:
        assert await dialect.tokens_made() is None


async def test_a_server_without_control_calls_or_context_is_refused() -> None:
    recorded = Recorded()
    async with at(recorded) as dialect:
        await dialect.check(context_length=512)
        with pytest.raises(ConfigError, match="max-model-len"):
            await dialect.check(context_length=513)
        del recorded.answers["/weight_info"]
        with pytest.raises(ConfigError, match="VLLM_SERVER_DEV_MODE"):
            await dialect.check(context_length=512)
        recorded.answers["/health"] = Plain("", 503)  # its engine died behind it
        with pytest.raises(ServerRefusalError):
            await dialect.check(context_length=512)


async def test_an_unreachable_server_is_unavailable() -> None:
    http = ServerHttp("http://127.0.0.1:9", name="vLLM", num_streams=1, deadline_s=5.0, stall_s=5.0)
    dialect = VllmDialect(http, cache_on_swap="keep", update_deadline_s=5.0)
    with pytest.raises(UnavailableError):
        await dialect.label()
    with pytest.raises(UnavailableError):
        await read(dialect)
    await dialect.close()
