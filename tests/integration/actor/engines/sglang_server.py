"""A contract of SGLang's HTTP interface: the fields it takes, the answers it gives, and its states, after its sources.

No SGLang runs here, as it has no build for CPUs. What is written below was read at commit 001067fff of its sources
(``srt/managers/io_struct.py``, ``srt/managers/tokenizer_manager.py``) and from the routes of
``srt/entrypoints/http_server.py``. It is strict: an unknown field, a wrong type or a call in the wrong state is refused
as the real one would, or louder.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.unit.models.tiny_llama import CONTEXT, open_model


class SamplingParams(msgspec.Struct, forbid_unknown_fields=True):
    """Those of SGLang's that this project sends."""

    max_new_tokens: int
    temperature: float
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False


class GenerateReqInput(msgspec.Struct, forbid_unknown_fields=True):
    """``io_struct.GenerateReqInput``, of which this project sends these."""

    input_ids: list[int]
    sampling_params: SamplingParams
    rid: str | None = None
    return_logprob: bool = False
    logprob_start_len: int = -1
    stream: bool = False
    cache_salt: str | None = None


class PauseGenerationReqInput(msgspec.Struct, forbid_unknown_fields=True):
    """``io_struct.PauseGenerationReqInput``."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


class ContinueGenerationReqInput(msgspec.Struct, forbid_unknown_fields=True):
    """``io_struct.ContinueGenerationReqInput``."""

    torch_empty_cache: bool = True


class UpdateWeightFromDiskReqInput(msgspec.Struct, forbid_unknown_fields=True):
    """``io_struct.UpdateWeightFromDiskReqInput``."""

    model_path: str
    load_format: str | None = None
    abort_all_requests: bool = False
    weight_version: str | None = None
    is_async: bool = False
    torch_empty_cache: bool = False
    keep_pause: bool = False
    recapture_cuda_graph: bool = False
    token_step: int = 0
    flush_cache: bool = True
    manifest: dict[str, Any] | None = None


class SglangServer:
    """The contract. ``incremental``: ``--incremental-streaming-output``; ``labels``: chunks say their versions.

    Its model is a real one; the tokens of a version are the last number of its name, so that labels can be checked.
    """

    def __init__(self, start: Path, *, incremental: bool = False, labels: bool = True) -> None:
        self._model = open_model(start, trains=False)
        self._incremental = incremental
        self._labels = labels
        self.weight_version = "default"
        # Tokens that each request may have so far: a test that updates requests in flight keeps them from ending.
        self.tokens_allowed = CONTEXT
        self.paused: str | None = None
        self.running = 0
        self.requests: list[str] = []

    @asynccontextmanager
    async def served(self) -> AsyncGenerator[str]:
        """Listen on a free port; its address."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/server_info", self._server_info),
                web.get("/model_info", self._model_info),
                web.post("/generate", self._generate),
                web.post("/pause_generation", self._pause),
                web.post("/continue_generation", self._continue),
                web.post("/update_weights_from_disk", self._update),
            ]
        )
        server = TestServer(app)
        await server.start_server()
        try:
            yield str(server.make_url("")).rstrip("/")
        finally:
            await server.close()

    async def _health(self, request: web.Request) -> web.Response:
        del request
        return web.Response()

    async def _server_info(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"context_length": CONTEXT, "version": "contract", "internal_states": [{}]})

    async def _model_info(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({"model_path": "start", "weight_version": self.weight_version})

    async def _pause(self, request: web.Request) -> web.Response:
        self.paused = (await _read(request, PauseGenerationReqInput)).mode
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, request: web.Request) -> web.Response:
        await _read(request, ContinueGenerationReqInput)
        self.paused = None
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def _update(self, request: web.Request) -> web.Response:
        body = await _read(request, UpdateWeightFromDiskReqInput)
        if self.paused == "in_place" and body.flush_cache and self.running:
            # The scheduler asserts here and exits.
            raise web.HTTPInternalServerError(text="Cache flush failed after updating weights")
        folder = Path(body.model_path)
        if not (folder / "model.safetensors").is_file():
            answer = {"success": False, "message": f"no weights in {folder}", "num_paused_requests": 0}
            return web.json_response(answer, status=400)
        self._model = open_model(folder, trains=False)
        self.weight_version = body.weight_version or self.weight_version
        message = f"Succeeded to update model weights. Weight version updated to {self.weight_version}."
        return web.json_response({"success": True, "message": message, "num_paused_requests": self.running})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await _read(request, GenerateReqInput)
        if not body.stream:
            return web.json_response(self._probe(body))
        assert body.rid is not None, "streams are named"
        self.requests.append(body.rid)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.running += 1
        try:
            await self._stream(body, response)
        finally:
            self.running -= 1
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _stream(self, body: GenerateReqInput, response: web.StreamResponse) -> None:
        tokens: list[int] = []
        labels: list[str] = []
        finish: dict[str, Any] | None = None
        while finish is None:
            await asyncio.sleep(0.002)
            if self.paused or len(tokens) >= self.tokens_allowed:
                continue
            tokens.append(int(self.weight_version.rpartition("@")[2]))
            labels.append(self.weight_version)
            if tokens[-1] in (body.sampling_params.stop_token_ids or ()):
                finish = {"type": "stop", "matched": tokens[-1]}
            elif len(tokens) == body.sampling_params.max_new_tokens:
                finish = {"type": "length", "length": len(tokens)}
            shown = tokens[-1:] if self._incremental else tokens
            meta: dict[str, Any] = {
                "id": body.rid,
                "finish_reason": finish,
                "prompt_tokens": len(body.input_ids),
                "completion_tokens": len(tokens),
                "cached_tokens": 0,
                "weight_version": self.weight_version,
                "output_token_logprobs": [(-0.5, token, None) for token in shown],
                "output_token_logprobs_length": len(shown),
            }
            if self._labels:
                meta["weight_versions"] = _spans(labels)
            chunk = {"text": "", "output_ids": shown, "meta_info": meta}
            await response.write(b"data: " + msgspec.json.encode(chunk) + b"\n\n")

    @torch.no_grad()
    def _probe(self, body: GenerateReqInput) -> dict[str, Any]:
        assert body.return_logprob
        assert body.logprob_start_len == 0
        assert body.sampling_params.max_new_tokens == 1
        hidden, _ = self._model(torch.tensor([body.input_ids]))
        prompt = self._model.next_logprobs(hidden[0, :-1])
        after = self._model.next_logprobs(hidden[0, -1], temperature=body.sampling_params.temperature)
        known = [(float(prompt[index, token]), token, None) for index, token in enumerate(body.input_ids[1:])]
        return {
            "text": "",
            "output_ids": [3],
            "meta_info": {
                "finish_reason": {"type": "length", "length": 1},
                "completion_tokens": 1,
                "input_token_logprobs": [(None, body.input_ids[0], None), *known],
                "output_token_logprobs": [(float(after[3]), 3, None)],
            },
        }


async def _read(request: web.Request, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.MsgspecError as error:
        raise web.HTTPBadRequest(text=str(error)) from error


def _spans(labels: list[str]) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = []
    for position, label in enumerate(labels):
        if spans and spans[-1]["version"] == label:
            spans[-1]["end"] = position + 1
        else:
            spans.append({"version": label, "start": position, "end": position + 1})
    return spans
