"""Conversations as tokens: the first context of one, and the tokens between a recorded reply and the next.

A model with a chat template is asked for the text of the whole conversation with a mark in place of the recorded
reply; what follows the mark is all that is tokenised. Without a template the messages' texts follow each other.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from tidegate.actor.gateway.errors import RefusedCallError
from tidegate.actor.gateway.messages import ChatMessage, Tool
from tidegate.actor.gateway.tool_text import ToolStyle, as_text, check_tools, described
from tidegate.core.json_text import NOT_JSON
from tidegate.models.tokenizer import Tokenizer

MARK = "the-recorded-reply"
_PROBE = Tool(
    "probe_of_the_template",
    (),
    {"type": "function", "function": {"name": "probe_of_the_template", "description": "", "parameters": {}}},
)


@runtime_checkable
class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer whose model may have a chat template."""

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template."""
        ...

    def chat_text(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> str:
        """A conversation by the template, up to where the model's next turn begins; ``messages`` as the API has them.

        Raises:
            RecordError: the template refuses it.
        """
        ...

    def encode_text(self, text: str) -> list[int]:
        """Tokens of a template's text, special ones where they are written, and none added."""
        ...


class ChatFormat(Protocol):
    """How one model reads conversations. All calls raise ``RecordError`` for what it cannot read."""

    def opening(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[int]:
        """The context of a conversation of which nothing is recorded; never empty."""
        ...

    def continuation(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool], *, num_known: int, ended: bool
    ) -> list[int]:
        """What follows the recorded reply ``messages[num_known - 1]`` before the model's next turn.

        ``ended``: the reply's last token is one that ends a turn.
        """
        ...

    def opening_text(self, prompt: str) -> list[int]:
        """The context of a plain prompt; never empty."""
        ...

    def continuation_text(self, text: str) -> list[int]:
        """What follows a recorded completion in a plain prompt."""
        ...


def open_format(tokenizer: Tokenizer, *, style: ToolStyle) -> ChatFormat:
    """The model's template where it has one."""
    if isinstance(tokenizer, ChatTokenizer) and tokenizer.has_chat_template:
        return TemplateFormat(tokenizer, style=style)
    return PlainFormat(tokenizer, style=style)


class TemplateFormat:
    """By a chat template; tools too where it supports them, else they are described as text."""

    def __init__(self, tokenizer: ChatTokenizer, *, style: ToolStyle) -> None:
        """Probes once whether the template shows tools."""
        self._tokenizer = tokenizer
        self._style: ToolStyle = style
        probe = tokenizer.chat_text([{"role": "user", "content": "?"}], [_PROBE.declaration])
        self._shows_tools = style == "hermes" and _PROBE.name in probe

    def opening(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[int]:
        """The template's text, tokenised."""
        return self._tokenizer.encode_text(self._text(messages, tools))

    def continuation(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool], *, num_known: int, ended: bool
    ) -> list[int]:
        """The template's text behind the reply, tokenised; its end of turn only where the reply has none."""
        mark = MARK
        while any(mark in message.content for message in messages):
            mark += "-"
        marked = [*messages[: num_known - 1], ChatMessage("assistant", mark), *messages[num_known:]]
        before, found, behind = self._text(marked, tools).partition(mark)
        if not found or mark in behind or not before:
            raise RefusedCallError(
                "This conversation cannot be continued",
                param="messages",
                why="the model's chat template does not show each reply once, as it was written",
            )
        tokens = self._tokenizer.encode_text(behind)
        if not ended:
            return tokens
        # The reply's own end of turn replaces the template's, and the space that some put before theirs.
        stop_ids = self._tokenizer.stop_ids
        stop = next((index for index, token in enumerate(tokens) if token in stop_ids), None)
        if stop is None or self._tokenizer.decode(tokens[: stop + 1]).strip():
            return tokens
        return tokens[stop + 1 :]

    def opening_text(self, prompt: str) -> list[int]:
        """The prompt verbatim, without the template."""
        return _not_empty(self._tokenizer.encode_text(prompt))

    def continuation_text(self, text: str) -> list[int]:
        """The text verbatim."""
        return self._tokenizer.encode_text(text)

    def _text(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> str:
        check_tools(tools, style=self._style)
        if not self._shows_tools:
            shown = described(messages, tools) if self._style == "hermes" else messages
            plain = [as_text(message, style=self._style) for message in shown]
            return self._tokenizer.chat_text([_for_template(message) for message in plain], [])
        return self._tokenizer.chat_text(
            [_for_template(message) for message in messages], [tool.declaration for tool in tools]
        )


class PlainFormat:
    """One text after the other, for models without a template; replies begin as the tokenizer's do."""

    def __init__(self, tokenizer: Tokenizer, *, style: ToolStyle) -> None:
        """Tools are described with ``hermes`` only: brackets have to be learned from demonstrations."""
        self._tokenizer = tokenizer
        self._style: ToolStyle = style

    def opening(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[int]:
        """All texts, a line each."""
        check_tools(tools, style=self._style)
        shown = described(messages, tools) if self._style == "hermes" else messages
        return _not_empty(self._tokenizer.encode_prompt(_lines(shown, self._style)))

    def continuation(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool], *, num_known: int, ended: bool
    ) -> list[int]:
        """The texts behind the reply."""
        return self._tokenizer.encode_reply(_lines(messages[num_known:], self._style))

    def opening_text(self, prompt: str) -> list[int]:
        """The prompt as the tokenizer reads prompts."""
        return _not_empty(self._tokenizer.encode_prompt(prompt))

    def continuation_text(self, text: str) -> list[int]:
        """The text as the tokenizer reads replies."""
        return self._tokenizer.encode_reply(text)


def _lines(messages: Sequence[ChatMessage], style: ToolStyle) -> str:
    return "\n".join(as_text(message, style=style).content for message in messages)


def _not_empty(tokens: list[int]) -> list[int]:
    if not tokens:
        raise RefusedCallError("The prompt is empty", param="prompt", why="the first token needs a context")
    return tokens


def _for_template(message: ChatMessage) -> dict[str, Any]:
    """A message as templates read it: like the API's, with a call's arguments as an object."""
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        shown["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": _object(call.arguments)},
            }
            for call in message.calls
        ]
    if message.role == "tool":
        shown["tool_call_id"] = message.call_id
    return shown


def _object(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments)
    except NOT_JSON:
        return arguments
