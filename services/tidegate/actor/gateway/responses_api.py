"""The Responses API (POST /v1/responses) over chat: its input as messages, a reply as its output items.

A conversation is the same one whichever API continues it. ``previous_response_id`` names a response of the same
episode, whose input and output come before the new input; an episode remembers as many as it may make calls.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import msgspec

from tidegate.actor.gateway.errors import RefusedCallError
from tidegate.actor.gateway.requests import ChatRequest, SharedParameters
from tidegate.actor.gateway.responses import CallAnswer, Envelope, usage_of

Item: TypeAlias = dict[str, Any]

TEXT_PARTS = frozenset({"input_text", "output_text", "text"})


class ResponsesRequest(SharedParameters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/responses. ``include``, ``truncation`` and ``text`` are accepted where they change nothing."""

    input: str | list[Item]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    tools: list[Item] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    truncation: str | None = None
    background: bool | None = None
    top_logprobs: int | None = None


class RememberedResponse(msgspec.Struct, frozen=True):
    """What a later call continues: all items up to and with the response's own."""

    items: tuple[Item, ...]


def items_of(request: ResponsesRequest, before: RememberedResponse | None) -> tuple[Item, ...]:
    """All items of a call, those of the response that it continues first."""
    given = [{"role": "user", "content": request.input}] if isinstance(request.input, str) else request.input
    return (*(() if before is None else before.items), *given)


def chat_of(request: ResponsesRequest, items: Sequence[Item]) -> ChatRequest:
    """The chat call that asks the same.

    Raises:
        RefusedCallError: an item is no text, no call and no result of a function, or a parameter asks for more.
    """
    _check(request)
    messages: list[Item] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    for index, item in enumerate(items):
        _add(messages, item, where=f"input[{index}]")
    shared = {name: getattr(request, name) for name in SharedParameters.__struct_fields__}
    if request.max_output_tokens is not None:
        shared["max_tokens"] = request.max_output_tokens
    return ChatRequest(
        **shared,
        messages=messages,
        tools=None if request.tools is None else [_tool(tool) for tool in request.tools],
        tool_choice=request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
        top_logprobs=request.top_logprobs,
        response_format=(request.text or {}).get("format"),
    )


def _check(request: ResponsesRequest) -> None:
    if request.background:
        raise RefusedCallError(
            "background is not supported",
            param="background",
            code="unsupported_parameter",
            why="an episode waits for its calls",
            fix="leave it out",
        )
    for name, given in (
        ("n", (request.n or 1) != 1),
        ("stop", request.stop),
        ("return_token_ids", request.return_token_ids),
    ):
        if given:
            raise RefusedCallError(
                f"{name} is not supported",
                param=name,
                code="unsupported_parameter",
                why="a response of this interface has no place for it",
                fix="leave it out, or call /v1/chat/completions",
            )
    if request.truncation not in (None, "disabled"):
        raise RefusedCallError(
            f"truncation is {request.truncation}",
            param="truncation",
            code="unsupported_parameter",
            why="a trajectory holds the context as the policy read it",
            fix="shorten the input in the agent",
        )


def _add(messages: list[Item], item: Item, *, where: str) -> None:
    """One item as a message, or as a part of the reply before it: text and calls of one turn are one message."""
    match item.get("type", "message"):
        case "message":
            role = item.get("role")
            content = _content(item.get("content"), where=f"{where}.content")
            messages.append({"role": role, "content": content})
        case "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
        case "function_call_output":
            content = _content(item.get("output"), where=f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        case "reasoning":
            pass  # the policy's own words are in its messages; an item of another model's thoughts has no text here
        case other:
            raise RefusedCallError(
                f"{where}.type is {other!r}",
                param=f"{where}.type",
                fix="send messages, function_call and function_call_output items",
            )


def _content(content: Any, *, where: str) -> Any:
    """Parts of text as chat has them; anything else is left for chat to refuse."""
    if not isinstance(content, list):
        return content
    texts: list[Item] = []
    for part in cast("list[Any]", content):
        read = cast("Item", part) if isinstance(part, dict) else {}
        if read.get("type") not in TEXT_PARTS:
            raise RefusedCallError(
                f"{where} is no text",
                param=where,
                why="the policy reads text only",
                fix="send a string or parts of text",
            )
        texts.append({"type": "text", "text": read.get("text", "")})
    return texts


def _tool(tool: Item) -> Item:
    """A function as chat declares it; other tools run on OpenAI's servers, and are left for chat to refuse."""
    if tool.get("type") != "function":
        return tool
    function = {name: tool[name] for name in ("name", "description", "parameters", "strict") if name in tool}
    return {"type": "function", "function": function}


def output_items(envelope: Envelope, answer: CallAnswer) -> list[Item]:
    """The items of one reply: its text, if there is any or nothing else, then its calls."""
    items: list[Item] = []
    if answer.reply.content.strip() or not answer.reply.calls:
        items.append(message_item(envelope, answer.reply.content, status="completed"))
    for index, call in enumerate(answer.reply.calls):
        items.append(
            {
                "id": f"fc_{envelope.answer_id}_{index}",
                "type": "function_call",
                "status": "completed",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments,
            }
        )
    return items


def message_item(envelope: Envelope, text: str | None, *, status: str) -> Item:
    """The message of a reply; ``text`` is None before it has any."""
    return {
        "id": f"msg_{envelope.answer_id}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [] if text is None else [text_part(text)],
    }


def text_part(text: str) -> Item:
    """A part of a message's content."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def response_answer(
    envelope: Envelope,
    request: ResponsesRequest,
    *,
    answer: CallAnswer | None = None,
    items: Sequence[Item] = (),
) -> Item:
    """The response object; without an answer it is in progress."""
    cut = answer is not None and answer.finish_reason == "length"
    usage = None if answer is None else usage_of([answer])
    return {
        "id": envelope.answer_id,
        "object": "response",
        "created_at": envelope.created_at_s,
        "model": envelope.model,
        "status": "in_progress" if answer is None else "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "instructions": request.instructions,
        "metadata": request.metadata or {},
        "output": list(items),
        "parallel_tool_calls": True,
        "previous_response_id": request.previous_response_id,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "tool_choice": request.tool_choice or "auto",
        "tools": request.tools or [],
        "max_output_tokens": request.max_output_tokens,
        "usage": None
        if usage is None
        else {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }
