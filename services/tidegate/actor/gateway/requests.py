"""The calls of the OpenAI API that the gateway accepts, and the parameters that it refuses.

The gateway refuses a parameter that it would ignore, unless the agent could see no difference.
"""

from typing import Any, TypeAlias, TypeVar

import msgspec

from tidegate.actor.gateway.config import GatewayConfig, UnknownFields
from tidegate.actor.gateway.errors import RefusedCallError
from tidegate.core.json_text import NOT_JSON
from tidegate.core.records import Sampler

STOPS_MAX = 4


class SharedParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameters of every kind of call. ``user`` to ``prompt_cache_key`` are accepted and ignored.

    ``top_k`` to ``return_token_ids`` are what clients of inference servers send besides the API's own.
    """

    model: str = ""
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class ChatRequest(SharedParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None


class CompletionRequest(SharedParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/completions."""

    prompt: Any
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None


Request: TypeAlias = ChatRequest | CompletionRequest
RequestT = TypeVar("RequestT", bound=SharedParameters)


class CallOptions(msgspec.Struct, frozen=True):
    """Options of a call for the engine and the answer. ``max_tokens`` is a bound, the answer may end before."""

    max_tokens: int
    stops: tuple[str, ...]
    num_choices: int
    seed: int | None
    logprobs: bool
    token_ids: bool
    stream: bool
    include_usage: bool


def read_request(body: bytes, kind: type[RequestT], *, unknown_fields: UnknownFields) -> RequestT:
    """A call's body; with ``unknown_fields: ignore`` it is read without those that no call of this kind has.

    Raises:
        RefusedCallError: it is no such call, or contains an unknown field.
    """
    try:
        if unknown_fields == "ignore":
            given = msgspec.json.decode(body, type=dict[str, Any])
            known = {name: value for name, value in given.items() if name in kind.__struct_fields__}
            return msgspec.convert(known, kind)
        return msgspec.json.decode(body, type=kind)
    except NOT_JSON as error:
        fix = (
            "leave the field out, or set actor.gateway.unknown_fields to ignore"
            if "unknown" in str(error)
            else ""
        )
        raise RefusedCallError("The body is no call of this endpoint", why=str(error), fix=fix) from error


def options_of(request: Request, *, sampler: Sampler, config: GatewayConfig) -> CallOptions:
    """The options of a call, under the run's sampler.

    Raises:
        RefusedCallError: a parameter asks for an unsupported feature; the message names it and the fix.
    """
    _check_sampling(request, sampler, override=config.sampling == "override")
    num_choices = 1 if request.n is None else request.n
    if not 1 <= num_choices <= config.choices_max:
        raise RefusedCallError(
            f"n is {num_choices}", param="n", fix=f"ask for 1 to {config.choices_max} choices"
        )
    if request.stream and num_choices > 1:
        raise RefusedCallError(
            "n is above 1 in a stream", param="n", fix="ask for one choice, or do not stream"
        )
    if isinstance(request, ChatRequest):
        _check_chat(request)
        logprobs = bool(request.logprobs)
        newer, older = request.max_completion_tokens, request.max_tokens
        asked = older if newer is None else newer
    else:
        _check_completion(request)
        logprobs = request.logprobs is not None
        asked = request.max_tokens
    for name, asked_for in (("logprobs", logprobs), ("return_token_ids", request.return_token_ids)):
        if request.stream and asked_for:
            raise _unsupported(name, why="a stream's pieces are text, not tokens")
    if asked is not None and asked < 1:
        raise RefusedCallError(f"max_tokens is {asked}", param="max_tokens", fix="ask for 1 or more")
    stops = _stops(request.stop)
    usage = bool((request.stream_options or {}).get("include_usage"))
    return CallOptions(
        max_tokens=min(asked or sampler.max_new_tokens, sampler.max_new_tokens),
        stops=stops,
        num_choices=num_choices,
        seed=request.seed,
        logprobs=logprobs,
        token_ids=bool(request.return_token_ids),
        stream=bool(request.stream),
        include_usage=usage,
    )


def _check_sampling(request: Request, sampler: Sampler, *, override: bool) -> None:
    for name, given, held in (
        ("temperature", request.temperature, sampler.temperature),
        ("top_p", request.top_p, sampler.top_p),
        # Servers have two words for all tokens.
        ("top_k", 0 if request.top_k == -1 else request.top_k, sampler.top_k),
    ):
        if given is not None and given != held and not override:
            raise RefusedCallError(
                f"{name} is {given:g}, and this run samples with {held:g}",
                param=name,
                code="unsupported_value",
                why="a trajectory is recorded under one sampler",
                fix=f"leave {name} out, set workload.sampler, or set actor.gateway.sampling to override",
            )
    for name, penalty in (
        ("frequency_penalty", request.frequency_penalty),
        ("presence_penalty", request.presence_penalty),
        ("logit_bias", request.logit_bias),
    ):
        if penalty:
            raise _unsupported(name, why="recorded logprobs would not be the policy's")
    for name, value, neutral in (
        ("min_p", request.min_p, 0.0),
        ("repetition_penalty", request.repetition_penalty, 1.0),
        ("min_tokens", request.min_tokens, 0),
        ("ignore_eos", request.ignore_eos, False),
    ):
        if value is not None and value != neutral:
            raise _unsupported(name, why="recorded logprobs would not be the policy's")


def _check_chat(request: ChatRequest) -> None:
    if request.top_logprobs:
        raise _unsupported("top_logprobs", why="engines report the chosen token's logprob only")
    if (request.response_format or {"type": "text"}).get("type") != "text":
        raise _unsupported("response_format", why="replies are the policy's own, unconstrained")
    if request.tool_choice not in (None, "auto", "none"):
        raise _unsupported("tool_choice", why="the policy itself chooses whether to call a tool")
    if request.parallel_tool_calls is False:
        raise _unsupported("parallel_tool_calls", why="the policy itself chooses how many tools it calls")


def _check_completion(request: CompletionRequest) -> None:
    if request.logprobs:
        raise _unsupported("logprobs", why="engines report the chosen token's logprob only; ask for 0")
    if request.echo:
        raise _unsupported("echo", why="the prompt has no logprobs here")
    if request.suffix:
        raise _unsupported("suffix", why="the policy writes forward only")
    if (request.best_of or 1) != 1:
        raise _unsupported("best_of", why="choices that are not returned would be lost; ask for n")


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > STOPS_MAX or not all(stops):
        raise RefusedCallError(
            "stop is not usable", param="stop", fix=f"send at most {STOPS_MAX} strings, none of them empty"
        )
    return stops


def _unsupported(name: str, *, why: str) -> RefusedCallError:
    return RefusedCallError(
        f"{name} is not supported", param=name, code="unsupported_parameter", why=why, fix="leave it out"
    )
