"""vLLM's HTTP interface, as version 0.32 has it.

Tokens go in and out by ids; the calls of its development mode pause it and replace its weights.
Written from its sources and tested against it: ``vllm/entrypoints/scale_out/token_in_token_out`` (generation),
``vllm/entrypoints/rl/online`` (pause, resume, versions) and ``vllm/entrypoints/serve/dev/rpc`` (``reload_weights``).
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

# The counter of generated tokens, a line for each engine behind the server.
TOKENS_METRIC = "vllm:generation_tokens_total{"

GENERATE = "/inference/v1/generate"


class VllmDialect:
    """One vLLM server, started by ``vllm_engine.server_command``."""

    # Only the last piece of a request reports its versions.
    labels_pieces = False

    def __init__(
        self, http: ServerHttp, *, cache_on_swap: Literal["recompute", "keep"], update_deadline_s: float
    ) -> None:
        """``cache_on_swap``: whether requests that continue under new weights keep their cache or recompute it."""
        self._http = http
        self._cache_on_swap = cache_on_swap
        self._update_deadline_s = update_deadline_s
        # Tokens of probes, counted separately from those of requests.
        self._num_probed = 0

    async def check(self, *, context_length: int) -> None:
        """Check that the server is ready, its context is long enough, and its control calls are enabled.

        Raises:
            UnavailableError: not ready. ConfigError: started with unsuitable settings.
        """
        await self._http.get_text("/health")
        models = await self._http.get("/v1/models", _Models)
        longest = min((model.max_model_len for model in models.data), default=0)
        if longest < context_length:
            raise ConfigError(
                f"The vLLM server takes {longest} tokens, and policy.context_length is {context_length}",
                fix="start it with a larger --max-model-len, or lower policy.context_length",
            )
        try:
            await self.label()
        except ServerRefusalError as error:
            raise ConfigError(
                "The vLLM server does not report the version of its weights",
                why=error.why,
                fix="start it with VLLM_SERVER_DEV_MODE=1 in its environment (docs/engines.md)",
            ) from error

    @asynccontextmanager
    async def stream(self, request: ServerRequest) -> AsyncGenerator[AsyncIterator[TokenPiece]]:
        """Generate; leaving the context ends the request on the server.

        Raises:
            UnavailableError: the connection or the server broke. ServerRefusalError: it refused.
        """
        sampler = request.sampler
        body = {
            "request_id": request.request_id,
            "token_ids": request.context,
            "stream": True,
            "cache_salt": request.cache_key,
            "sampling_params": {
                "max_tokens": sampler.max_new_tokens,
                "temperature": sampler.temperature,
                "logprobs": 0,
                "stop_token_ids": sorted(request.stop_ids),
                "ignore_eos": True,  # only the stop ids end a turn
                "detokenize": False,
            },
        }
        async with self._http.events(GENERATE, body) as events:
            yield _pieces(events)

    async def pause(self) -> None:
        """Keep requests; unless the config keeps their cache, the server recomputes it after ``resume``."""
        clear = "true" if self._cache_on_swap == "recompute" else "false"
        await self._http.post(f"/pause?mode=keep&clear_cache={clear}", {}, AnyAnswer)

    async def load(self, folder: Path, *, label: str) -> None:
        """Replace the weights by those of a folder."""
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await self._http.post("/collective_rpc", reload, AnyAnswer, deadline_s=self._update_deadline_s)
        await self._http.post("/update_weight_version", {"new_version": label}, AnyAnswer)

    async def resume(self) -> None:
        """Generate again."""
        await self._http.post("/resume", {}, AnyAnswer)

    async def label(self) -> str:
        """The label of the weights that it serves; ``default`` until the first update."""
        return (await self._http.get("/weight_info", _WeightInfo)).weight_version

    async def tokens_made(self) -> int | None:
        """The server's counter of tokens sent to streams; None when its statistics are off."""
        page = await self._http.get_text("/metrics")
        counts = [
            float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(TOKENS_METRIC)
        ]
        return int(sum(counts)) - self._num_probed if counts else None

    async def probe(self, tokens: Sequence[int], *, temperature: float) -> ProbeAnswer:
        """One pass over a prompt. vLLM always computes logprobs of prompts, also with a warm cache."""
        body = {
            "token_ids": tuple(tokens),
            "sampling_params": {
                "max_tokens": 1,
                "temperature": temperature,
                "prompt_logprobs": 0,
                "logprobs": 0,
                "ignore_eos": True,
                "detokenize": False,
            },
        }
        answer = await self._http.post(GENERATE, body, _ProbeAnswer, deadline_s=self._update_deadline_s)
        self._num_probed += 1
        if answer.prompt_logprobs is None or len(answer.prompt_logprobs) != len(tokens):
            raise ServerRefusalError("The vLLM server gave no logprobs of the probe's prompt")
        sampled = answer.choices[0].content()
        return ProbeAnswer(
            prompt_logprobs=tuple(
                _of_token(entry, token)
                for entry, token in zip(answer.prompt_logprobs[1:], tokens[1:], strict=True)
            ),
            token=sampled[0].token_id,
            logprob=sampled[0].logprob,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()


class _Model(msgspec.Struct):
    max_model_len: int = 0


class _Models(msgspec.Struct):
    data: list[_Model]


class _WeightInfo(msgspec.Struct):
    weight_version: str


class _TokenLogprob(msgspec.Struct):
    token_id: int
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_TokenLogprob] | None = None


class _VllmChoice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None
    weight_versions: list[LabelSpan] | None = None

    def content(self) -> list[_TokenLogprob]:
        """Logprobs of the tokens, one each.

        Raises:
            ServerRefusalError: some are missing.
        """
        found = (self.logprobs.content if self.logprobs else None) or []
        if [entry.token_id for entry in found] != (self.token_ids or []):
            raise ServerRefusalError(
                "The vLLM server sent tokens without their logprobs",
                fix="use the version that docs/engines.md names",
            )
        return found


class _PromptLogprob(msgspec.Struct):
    logprob: float


class _ProbeAnswer(msgspec.Struct):
    choices: list[_VllmChoice]
    prompt_logprobs: list[dict[str, _PromptLogprob] | None] | None = None


class _VllmChunk(msgspec.Struct):
    choices: list[_VllmChoice] = []
    error: Any = None


async def _pieces(events: AsyncIterator[bytes]) -> AsyncIterator[TokenPiece]:
    async for event in events:
        chunk = decode(event, _VllmChunk, what="an event")
        if chunk.error is not None:
            raise UnavailableError("The vLLM server broke a request off", why=str(chunk.error))
        for choice in chunk.choices:
            content = choice.content()
            yield TokenPiece(
                tokens=[entry.token_id for entry in content],
                logprobs=[entry.logprob for entry in content],
                spans=tuple(choice.weight_versions or ()),
                finish=_finish(choice.finish_reason),
            )


def _finish(reason: str | None) -> PieceFinish | None:
    match reason:
        case None:
            return None
        case "stop" | "length":
            return reason
        case _:
            return "abort"


def _of_token(entry: dict[str, _PromptLogprob] | None, token: int) -> float:
    if entry is None or str(token) not in entry:
        raise ServerRefusalError("The vLLM server left a token of the probe's prompt out")
    return entry[str(token)].logprob
