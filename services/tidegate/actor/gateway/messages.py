"""Messages of agents in one canonical form: two ways of writing the same message are the same message.

A conversation is known by a chain of digests, one a message, so that the next call finds the one it extends. Accidental
changes do not count: space around a reply, null for empty content, parts for text, the spelling of a call's JSON,
fields that only a client's library adds.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias, cast

import msgspec

from tidegate.actor.gateway.errors import RefusedCallError
from tidegate.core.json_text import NOT_JSON

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
DIGEST_BYTES = 16

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


class CalledTool(msgspec.Struct, frozen=True):
    """One call that a reply makes; ``arguments`` is JSON text."""

    call_id: str
    name: str
    arguments: str


class Tool(msgspec.Struct, frozen=True):
    """A tool that a call declares: its arguments' names, and the API's own object."""

    name: str
    parameters: tuple[str, ...]
    declaration: dict[str, Any]


class ChatMessage(msgspec.Struct, frozen=True):
    """One message. ``call_id`` is the call that a tool's message answers."""

    role: Role
    content: str
    calls: tuple[CalledTool, ...] = ()
    call_id: str = ""

    def digest(self, before: bytes) -> bytes:
        """The conversation that ends with this message; ``before`` is that of the one before it."""
        assistant = self.role == "assistant"
        same = (
            self.role,
            self.content.strip() if assistant else self.content,
            [(call.call_id, call.name, _canonical_json(call.arguments)) for call in self.calls],
            self.call_id,
        )
        return hashlib.blake2b(before + msgspec.json.encode(same), digest_size=DIGEST_BYTES).digest()


def conversation_digests(messages: Iterable[ChatMessage], tools: Sequence[Tool]) -> list[bytes]:
    """The conversation's digest after each message; other tools are another conversation, as a model reads them."""
    declared = msgspec.json.encode([tool.declaration for tool in tools], order="deterministic")
    digest = hashlib.blake2b(declared, digest_size=DIGEST_BYTES).digest()
    digests: list[bytes] = []
    for message in messages:
        digest = message.digest(digest)
        digests.append(digest)
    return digests


def read_messages(raw: Sequence[dict[str, Any]]) -> tuple[ChatMessage, ...]:
    """The ``messages`` of a call.

    Raises:
        RefusedCallError: there are none, or one is no text message; the error names it.
    """
    if not raw:
        raise RefusedCallError("messages is empty", param="messages", fix="send at least one message")
    return tuple(_message(item, where=f"messages[{index}]") for index, item in enumerate(raw))


def _message(item: dict[str, Any], *, where: str) -> ChatMessage:
    role = _ROLES.get(str(item.get("role")))
    if role is None:
        raise RefusedCallError(
            f"{where}.role is {item.get('role')!r}",
            param=f"{where}.role",
            fix=f"use one of {', '.join(_ROLES)}",
        )
    calls = item.get("tool_calls") or ()
    if calls and role != "assistant":
        raise RefusedCallError(
            f"{where} calls tools", param=f"{where}.tool_calls", why="only replies of the assistant do"
        )
    call_id = item.get("tool_call_id") or ""
    if role == "tool" and not isinstance(call_id, str):
        raise RefusedCallError(f"{where}.tool_call_id is no text", param=f"{where}.tool_call_id")
    return ChatMessage(
        role=role,
        content=_text(item.get("content"), where=f"{where}.content"),
        calls=tuple(_called(call, where=f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)),
        call_id=call_id if role == "tool" else "",
    )


def _text(content: Any, *, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    try:
        parts = msgspec.convert(content, list[_TextPart])
    except msgspec.ValidationError as error:
        raise RefusedCallError(
            f"{where} is no text",
            param=where,
            why=f"the policy reads text only: {error}",
            fix="send a string or parts of text",
        ) from error
    return "".join(part.text for part in parts)


def _called(call: Any, *, where: str) -> CalledTool:
    try:
        given = msgspec.convert(call, _RawCall)
    except msgspec.ValidationError as error:
        raise RefusedCallError(f"{where} is no call of a function", param=where, why=str(error)) from error
    return CalledTool(given.id, given.function.name, given.function.arguments)


def read_tools(raw: Sequence[dict[str, Any]]) -> tuple[Tool, ...]:
    """The ``tools`` of a call.

    Raises:
        RefusedCallError: one is no function; the error names it.
    """
    tools: list[Tool] = []
    for index, item in enumerate(raw):
        function = item.get("function")
        name = cast("dict[str, Any]", function).get("name") if isinstance(function, dict) else None
        if item.get("type") != "function" or not isinstance(name, str) or not name:
            raise RefusedCallError(
                f"tools[{index}] is no function with a name",
                param=f"tools[{index}]",
                fix="declare functions only",
            )
        parameters = cast("dict[str, Any]", function).get("parameters")
        properties: Any = (
            cast("dict[str, Any]", parameters).get("properties") if isinstance(parameters, dict) else None
        )
        names = tuple(cast("dict[str, Any]", properties)) if isinstance(properties, dict) else ()
        tools.append(Tool(name, names, item))
    return tuple(tools)


class _TextPart(msgspec.Struct):
    type: Literal["text"]
    text: str


class _RawFunction(msgspec.Struct):
    name: str
    arguments: str


class _RawCall(msgspec.Struct):
    id: str
    function: _RawFunction


def _canonical_json(text: str) -> str:
    """The same JSON however it was spelled; text that is none stays as it is."""
    try:
        return msgspec.json.encode(msgspec.json.decode(text), order="deterministic").decode()
    except NOT_JSON:
        return text
