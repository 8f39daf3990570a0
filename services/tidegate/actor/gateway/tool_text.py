"""Parses the tool calls that a model writes: JSON in <tool_call> tags (Hermes), or [argument] in brackets.

Text that is no valid call of a declared tool stays text: the agent sees what the model wrote.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, cast

import msgspec

from tidegate.actor.gateway.errors import RefusedCallError
from tidegate.actor.gateway.messages import CalledTool, ChatMessage, Tool
from tidegate.core.json_text import NOT_JSON

ToolStyle: TypeAlias = Literal["hermes", "bracket"]

# A stream withholds text from here on: it may become a call.
OPENINGS: dict[ToolStyle, str] = {"hermes": "<tool_call>", "bracket": "["}

_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_BRACKET = re.compile(r"\[([^\[\]]*)\]")

_PREFACE = """You may call these functions, given as JSON schemas, one a line:
<tools>
{tools}
</tools>
To call one, write its name and arguments as JSON inside of tags:
<tool_call>
{{"name": <name>, "arguments": <arguments>}}
</tool_call>"""


class _Written(msgspec.Struct):
    name: str
    arguments: dict[str, Any] = {}


class Reply(msgspec.Struct, frozen=True):
    """A model's output as its agent gets it: ``content`` outside of the calls, and the calls in order."""

    content: str
    calls: tuple[CalledTool, ...] = ()


def check_tools(tools: Sequence[Tool], *, style: ToolStyle) -> None:
    """Check that this style can call these tools.

    Raises:
        RefusedCallError: brackets name neither a tool nor a parameter, so there can be only one of each.
    """
    if style == "bracket" and tools and (len(tools) > 1 or len(tools[0].parameters) != 1):
        raise RefusedCallError(
            "In brackets only one tool with one parameter can be called",
            param="tools",
            why="[argument] names neither",
            fix="declare one such tool, or set actor.gateway.tool_calls to hermes",
        )


def read_reply(text: str, tools: Sequence[Tool], *, style: ToolStyle, new_id: Callable[[], str]) -> Reply:
    """Separate a model's text into content and calls. ``new_id`` makes a new id."""
    if not tools:
        return Reply(text)
    pattern = _HERMES if style == "hermes" else _BRACKET
    calls: list[CalledTool] = []
    outside: list[str] = []
    end = 0
    for match in pattern.finditer(text):
        called = _hermes(match[1], tools) if style == "hermes" else _bracket(match[1], tools)
        if called is None:
            continue
        name, arguments = called
        calls.append(CalledTool(new_id(), name, msgspec.json.encode(arguments).decode()))
        outside.append(text[end : match.start()])
        end = match.end()
    return Reply("".join([*outside, text[end:]]), tuple(calls))


def _hermes(body: str, tools: Sequence[Tool]) -> tuple[str, dict[str, Any]] | None:
    try:
        written = msgspec.json.decode(body, type=_Written)
    except NOT_JSON:
        return None
    return (written.name, written.arguments) if any(tool.name == written.name for tool in tools) else None


def _bracket(body: str, tools: Sequence[Tool]) -> tuple[str, dict[str, Any]]:
    return tools[0].name, {tools[0].parameters[0]: body}


def as_text(message: ChatMessage, *, style: ToolStyle) -> ChatMessage:
    """The same message with calls and results in its text, for a model whose template supports neither."""
    if message.role == "tool":
        content = message.content
        if style == "hermes":
            content = f"<tool_response>\n{content}\n</tool_response>"
        return ChatMessage("user", content)
    if not message.calls:
        return message
    return ChatMessage(
        "assistant", "\n".join(filter(None, [message.content, *_calls_as_text(message, style)]))
    )


def _calls_as_text(message: ChatMessage, style: ToolStyle) -> list[str]:
    if style == "bracket":
        return [f"[{_only_argument(call)}]" for call in message.calls]
    return [
        f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>'
        for call in message.calls
    ]


def _only_argument(call: CalledTool) -> str:
    try:
        arguments = msgspec.json.decode(call.arguments)
    except NOT_JSON:
        return call.arguments
    if not isinstance(arguments, dict):
        return call.arguments
    return " ".join(str(value) for value in cast("dict[str, Any]", arguments).values())


def described(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
    """The messages with the tools declared in the system message, as Hermes models were trained."""
    if not tools:
        return list(messages)
    declared = "\n".join(msgspec.json.encode(tool.declaration).decode() for tool in tools)
    preface = _PREFACE.format(tools=declared)
    if messages[0].role == "system":
        return [ChatMessage("system", f"{messages[0].content}\n\n{preface}"), *messages[1:]]
    return [ChatMessage("system", preface), *messages]
