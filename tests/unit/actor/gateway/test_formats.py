"""Conversations as tokens: by a real tokenizer's template, by characters, with tools shown or described."""

from typing import Any

import pytest

from tests.unit.actor.gateway.fakes import END_ID, ChatMlTokenizer
from tests.unit.models.tiny_tokenizer import CHATML, add_tokenizer
from tidegate.actor.gateway.errors import RefusedCallError
from tidegate.actor.gateway.formats import PlainFormat, TemplateFormat, open_format
from tidegate.actor.gateway.messages import CalledTool, ChatMessage, Tool, conversation_digests
from tidegate.actor.gateway.tool_text import ToolStyle
from tidegate.core.errors import RecordError
from tidegate.models.char_tokenizer import CharTokenizer
from tidegate.models.transformers_tokenizer import TransformersTokenizer


def tool(*parameters: str, name: str = "calculator") -> Tool:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    declaration: dict[str, Any] = {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
    }
    return Tool(name, parameters, declaration)


HELLO = ChatMessage("user", "hello")
CALL = CalledTool("call_1", "calculator", '{"expression":"3+1"}')
CALLED = [HELLO, ChatMessage("assistant", "", (CALL,)), ChatMessage("tool", "4", call_id="call_1")]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> TransformersTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 512}')
    (folder / "model.safetensors").write_bytes(b"")
    return TransformersTokenizer(add_tokenizer(folder, chat_template=CHATML))


def test_recorded_reply_and_what_follows_are_the_conversation_encoded_at_once(
    real: TransformersTokenizer,
) -> None:
    chat = open_format(real, style="hermes")
    assert isinstance(chat, TemplateFormat)
    said = [HELLO, ChatMessage("assistant", "good day"), ChatMessage("user", "how is it?")]
    reply = [*real.encode_text("good day"), *real.encode_text("<|im_end|>")]
    piece_by_piece = [
        *chat.opening(said[:1], ()),
        *reply,
        *chat.continuation(said, (), num_known=2, ended=True),
    ]
    assert piece_by_piece == chat.opening(said, ())
    assert chat.opening(said[:1], ()) == real.encode_prompt("hello")
    assert chat.continuation(said, (), num_known=2, ended=True) == real.encode_reply("how is it?")


def test_markup_in_a_message_is_text(real: TransformersTokenizer) -> None:
    chat = open_format(real, style="hermes")
    [end] = real.encode_text("<|im_end|>")
    assert chat.opening([ChatMessage("user", "a<|im_end|>b")], ()).count(end) == 1


def test_reply_without_an_end_of_its_own_gets_the_templates() -> None:
    chat = open_format(ChatMlTokenizer(), style="hermes")
    said = [HELLO, ChatMessage("assistant", "good"), ChatMessage("user", "more")]
    ended, cut = (chat.continuation(said, (), num_known=2, ended=ended) for ended in (True, False))
    assert cut == [END_ID, *ended]


def test_placeholder_of_the_reply_occurs_in_no_message() -> None:
    tokenizer = ChatMlTokenizer()
    chat = open_format(tokenizer, style="hermes")
    said = [
        ChatMessage("user", "the-recorded-reply"),
        ChatMessage("assistant", "x"),
        ChatMessage("user", "the-recorded-reply-"),
    ]
    text = tokenizer.decode(chat.continuation(said, (), num_known=2, ended=True))
    assert text == "\n<|im_start|>user\nthe-recorded-reply-<|im_end|>\n<|im_start|>assistant\n"


def test_template_that_hides_replies_is_refused() -> None:
    class Hiding(ChatMlTokenizer):
        def chat_text(self, messages: Any, tools: Any) -> str:
            return super().chat_text(
                [message for message in messages if message["role"] != "assistant"], tools
            )

    said = [HELLO, ChatMessage("assistant", "x"), ChatMessage("user", "more")]
    with pytest.raises(RefusedCallError, match="cannot be continued"):
        open_format(Hiding(), style="hermes").continuation(said, (), num_known=2, ended=True)


def test_template_that_shows_tools_gets_calls_and_results_as_such() -> None:
    tokenizer = ChatMlTokenizer()
    text = tokenizer.decode(open_format(tokenizer, style="hermes").opening(CALLED, [tool("expression")]))
    assert "tools: calculator" in text
    assert '{"name":"calculator","arguments":{"expression":"3+1"}}' in text
    assert "<|im_start|>tool\n4" in text


def test_template_without_tools_gets_them_as_text() -> None:
    tokenizer = ChatMlTokenizer(shows_tools=False)
    chat = open_format(tokenizer, style="hermes")
    text = tokenizer.decode(chat.opening([ChatMessage("system", "Be brief."), *CALLED], [tool("expression")]))
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou may call")
    assert '<tool_call>\n{"name": "calculator", "arguments": {"expression":"3+1"}}\n</tool_call>' in text
    assert "<|im_start|>user\n<tool_response>\n4\n</tool_response>" in text


@pytest.mark.parametrize("shows_tools", [True, False])
@pytest.mark.parametrize("style", ["hermes", "bracket"])
def test_arguments_nested_deeper_than_json_is_read_are_text(shows_tools: bool, style: ToolStyle) -> None:
    nested = "[" * 100_000
    called = [HELLO, ChatMessage("assistant", "", (CalledTool("call_1", "calculator", nested),))]
    tokenizer = ChatMlTokenizer(shows_tools=shows_tools)
    chat = open_format(tokenizer, style=style)
    assert nested in tokenizer.decode(chat.opening(called, [tool("expression")]))
    assert conversation_digests(called, ())


def test_characters_follow_each_other_as_the_built_in_episodes_have_them() -> None:
    tokenizer = CharTokenizer()
    chat = open_format(tokenizer, style="bracket")
    assert isinstance(chat, PlainFormat)
    said = [ChatMessage("user", "3+1="), *CALLED[1:]]
    assert chat.opening(said[:1], [tool("expression")]) == tokenizer.encode_prompt("3+1=")
    assert chat.continuation(said, [tool("expression")], num_known=2, ended=True) == tokenizer.encode_reply(
        "4"
    )
    assert chat.opening(said, [tool("expression")]) == tokenizer.encode_prompt("3+1=\n[3+1]\n4")
    with pytest.raises(RecordError, match="alphabet"):
        chat.opening([ChatMessage("user", "What?")], ())


@pytest.mark.parametrize("tools", [[tool("a", "b")], [tool()], [tool("a"), tool("a", name="other")]])
def test_brackets_call_one_tool_with_one_parameter(tools: list[Tool]) -> None:
    with pytest.raises(RefusedCallError, match="only one tool"):
        open_format(CharTokenizer(), style="bracket").opening([ChatMessage("user", "1")], tools)


def test_empty_prompt_is_refused() -> None:
    with pytest.raises(RefusedCallError, match="empty"):
        open_format(ChatMlTokenizer(), style="hermes").opening_text("")
