"""SGLang's HTTP interface: native generation by token ids, and its calls that pause it and load weights from a folder.

Written from its sources, never tested against a server: ``srt/managers/io_struct.py`` (requests) and
``srt/managers/tokenizer_manager.py`` (answers) at commit 001067ff, the routes of ``srt/entrypoints/http_server.py``.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from tidegate.actor.engines.server_http import AnyAnswer, ServerHttp, decode
from tidegate.actor.engines.server_port import (
    LabelSpan,
    PieceFinish,
    ProbeAnswer,
    ServerRefusalError,
    ServerRequest,
    TokenPiece,
)
from tidegate.core.errors import ConfigError, UnavailableError


class SglangDialect:
    """One SGLang server."""

    # Each piece's ``weight_versions`` reports the weights of all tokens so far.
    labels_pieces = True

    def __init__(
        self, http: ServerHttp, *, cache_on_swap: Literal["recompute", "keep"], update_deadline_s: float
    ) -> None:
        """``cache_on_swap``: whether requests that continue under new weights keep their cache or recompute it."""
        self._http = http
        self._recompute = cache_on_swap == "recompute"
        self._update_deadline_s = update_deadline_s

    async def check(self, *, context_length: int) -> None:
        """Check that the server is ready and its context is long enough.

        Raises:
            UnavailableError: not ready. ConfigError: started with unsuitable settings.
        """
        await self._http.get_text("/health")
        longest = (await self._http.get("/server_info", _ServerInfo)).context_length
        if longest is not None and longest < context_length:
            raise ConfigError(
                f"The SGLang server takes {longest} tokens, and policy.context_length is {context_length}",
                fix="start it with a larger --context-length, or lower policy.context_length",
            )

    @asynccontextmanager
    async def stream(self, request: ServerRequest) -> AsyncGenerator[AsyncIterator[TokenPiece]]:
        """Generate; leaving the context ends the request on the server.

        Raises:
            UnavailableError: the connection or the server broke. ServerRefusalError: it refused.
        """
        body = {
            "rid": request.request_id,
            "input_ids": request.context,
            "stream": True,
            "return_logprob": True,
            "cache_salt": request.cache_key,
            "sampling_params": {
                "max_new_tokens": request.sampler.max_new_tokens,
                "temperature": request.sampler.temperature,
                "stop_token_ids": sorted(request.stop_ids),
                "ignore_eos": True,  # only the stop ids end a turn
            },
        }
        async with self._http.events("/generate", body) as events:
            yield _pieces(events)

    async def pause(self) -> None:
        """Keep requests: requeued to be recomputed, or frozen with their cache."""
        await self._http.post(
            "/pause_generation", {"mode": "retract" if self._recompute else "in_place"}, AnyAnswer
        )

    async def load(self, folder: Path, *, label: str) -> None:
        """Replace the weights by those of a folder. The server cannot empty its cache while frozen requests use it."""
        body = {
            "model_path": str(folder),
            "weight_version": label,
            "flush_cache": self._recompute,
        }
        answer = await self._http.post(
            "/update_weights_from_disk", body, _Update, deadline_s=self._update_deadline_s
        )
        if not answer.success:
            raise ServerRefusalError("The SGLang server could not load the weights", why=answer.message)

    async def resume(self) -> None:
        """Generate again."""
        await self._http.post("/continue_generation", {}, AnyAnswer)

    async def label(self) -> str:
        """The label of the weights that it serves; ``default`` until the first update."""
        return (await self._http.get("/model_info", _ModelInfo)).weight_version

    async def tokens_made(self) -> int | None:
        """None: each piece is labelled, so no count is needed."""
        return None

    async def probe(self, tokens: Sequence[int], *, temperature: float) -> ProbeAnswer:
        """One pass over a prompt; requests logprobs from its start, because a cached prefix has none."""
        body = {
            "input_ids": tuple(tokens),
            "return_logprob": True,
            "logprob_start_len": 0,
            "sampling_params": {"max_new_tokens": 1, "temperature": temperature, "ignore_eos": True},
        }
        answer = await self._http.post("/generate", body, _SglangChunk, deadline_s=self._update_deadline_s)
        prompt = answer.meta_info.input_token_logprobs or []
        sampled = answer.meta_info.output_token_logprobs
        if [token for _, token, _ in prompt] != list(tokens) or len(sampled) != 1:
            raise ServerRefusalError("The SGLang server gave no logprobs of the probe's prompt")
        logprob, token, _ = sampled[0]
        return ProbeAnswer(
            prompt_logprobs=tuple(_known(logprob) for logprob, _, _ in prompt[1:]),
            token=token,
            logprob=_known(logprob),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()


class _ServerInfo(msgspec.Struct):
    context_length: int | None = None


class _ModelInfo(msgspec.Struct):
    weight_version: str


class _Update(msgspec.Struct):
    success: bool
    message: str = ""


class _Finish(msgspec.Struct):
    type: str
    message: str = ""


# Logprob, token, text; the first token of a prompt has no logprob, and texts are not asked for.
_TokenLogprob = tuple[float | None, int, str | None]


class _MetaInfo(msgspec.Struct):
    completion_tokens: int = 0
    output_token_logprobs: list[_TokenLogprob] = []
    input_token_logprobs: list[_TokenLogprob] | None = None
    finish_reason: _Finish | None = None
    weight_versions: list[LabelSpan] | None = None


class _SglangChunk(msgspec.Struct):
    meta_info: _MetaInfo = msgspec.field(default_factory=_MetaInfo)
    error: Any = None


async def _pieces(events: AsyncIterator[bytes]) -> AsyncIterator[TokenPiece]:
    """With incremental output each event has only the new tokens, otherwise all tokens so far."""
    received = 0
    async for event in events:
        chunk = decode(event, _SglangChunk, what="an event")
        if chunk.error is not None:
            raise UnavailableError("The SGLang server broke a request off", why=str(chunk.error))
        meta = chunk.meta_info
        num_new = meta.completion_tokens - received
        if not 0 <= num_new <= len(meta.output_token_logprobs):
            raise ServerRefusalError(
                f"The SGLang server reports {meta.completion_tokens} tokens, of which {received} arrived,"
                f" and sends {len(meta.output_token_logprobs)}",
                fix="use the version that docs/engines.md names",
            )
        new = meta.output_token_logprobs[len(meta.output_token_logprobs) - num_new :]
        received = meta.completion_tokens
        yield TokenPiece(
            tokens=[token for _, token, _ in new],
            logprobs=[_known(logprob) for logprob, _, _ in new],
            spans=tuple(meta.weight_versions or ()),
            finish=_finish(meta.finish_reason),
        )


def _finish(reason: _Finish | None) -> PieceFinish | None:
    match reason:
        case None:
            return None
        case _Finish(type="stop"):
            return "stop"
        case _Finish(type="length"):
            return "length"
        case _:
            return "abort"


def _known(logprob: float | None) -> float:
    if logprob is None:
        raise ServerRefusalError("The SGLang server left a logprob out")
    return logprob
