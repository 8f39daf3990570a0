"""Two ways of writing the same message are the same message; anything else is another conversation."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.actor.gateway.errors import RefusedCallError
from tidegate.actor.gateway.messages import (
    CalledTool,
    ChatMessage,
    conversation_digests,
    read_messages,
    read_tools,
)
from tidegate.actor.gateway.tool_text import read_reply
from tidegate.actor.gateway.writing import sure_length

CALCULATOR: Any = {
    "type": "function",
    "function": {"name": "calculator", "parameters": {"properties": {"expression": {"type": "string"}}}},
}
TOOLS = read_tools([CALCULATOR])
CALL: Any = {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": '{"a":1,"b":2}'}}


def digest_of(message: dict[str, Any]) -> bytes:
    return conversation_digests(read_messages([message]), ())[-1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "assistant", "content": " hi\n"}, {"role": "assistant", "content": "hi", "refusal": None}),
        ({"role": "user", "content": "hi"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}),
        ({"role": "system", "content": "x"}, {"role": "developer", "content": "x", "name": "boss"}),
        (
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{**CALL, "function": {"name": "calculator", "arguments": '{"b": 2, "a": 1}'}}],
            },
        ),
    ],
)
def test_spelling_does_not_make_another_conversation(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert digest_of(one) == digest_of(other)


@pytest.mark.parametrize(
    "other",
    [
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": "hi "},
        {"role": "system", "content": "hi"},
        {"role": "tool", "content": "hi", "tool_call_id": "c1"},
    ],
)
def test_another_role_or_text_is_another_conversation(other: dict[str, Any]) -> None:
    assert digest_of({"role": "user", "content": "hi"}) != digest_of(other)


def test_call_with_another_id_is_another_conversation() -> None:
    one = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert digest_of(one) != digest_of({**one, "tool_calls": [{**CALL, "id": "c2"}]})


def test_other_tools_are_another_conversation() -> None:
    messages = read_messages([{"role": "user", "content": "hi"}])
    assert conversation_digests(messages, ()) != conversation_digests(messages, TOOLS)


@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text(max_size=4)), min_size=1, max_size=5)
)
def test_digests_of_a_conversation_are_those_of_its_beginnings(said: list[tuple[Any, str]]) -> None:
    messages = [ChatMessage(role, text) for role, text in said]
    digests = conversation_digests(messages, ())
    for count in range(1, len(messages) + 1):
        assert conversation_digests(messages[:count], ()) == digests[:count]


@pytest.mark.parametrize(
    "raw",
    [
        {"role": "assistant", "content": "", "tool_calls": [{"id": "x"}]},
        {"role": "user", "content": "", "tool_calls": [CALL]},
        {"role": "user", "content": 5},
        {"content": "x"},
    ],
)
def test_invalid_messages_are_refused_with_their_position(raw: dict[str, Any]) -> None:
    with pytest.raises(RefusedCallError) as caught:
        read_messages([{"role": "user", "content": "fine"}, raw])
    assert caught.value.param.startswith("messages[1]")


@pytest.mark.parametrize("raw", [{"type": "retrieval"}, {"type": "function", "function": {}}])
def test_invalid_functions_are_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(RefusedCallError, match="function"):
        read_tools([raw])


def reply_to(text: str, style: Any = "hermes") -> tuple[str, list[tuple[str, str]]]:
    numbers = itertools.count()
    reply = read_reply(text, TOOLS, style=style, new_id=lambda: f"call_{next(numbers)}")
    assert [call.call_id for call in reply.calls] == [f"call_{index}" for index in range(len(reply.calls))]
    return reply.content, [(call.name, call.arguments) for call in reply.calls]


@pytest.mark.parametrize(
    ("text", "content", "arguments"),
    [
        ("just text", "just text", []),
        ('a<tool_call>{"name":"calculator","arguments":{"x":1}}</tool_call>b', "ab", ['{"x":1}']),
        ('<tool_call> {"name":"calculator"} </tool_call>', "", ["{}"]),
        ('<tool_call>{"name":"calculator","arguments":{"x":1}}', "", ['{"x":1}']),
        ('<tool_call>{"name":"calculator"}</tool_call>' * 2, "", ["{}", "{}"]),
        ('<tool_call>{"name":"calculator","argu', '<tool_call>{"name":"calculator","argu', []),
        ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", []),
        ('<tool_call>{"name":"other"}</tool_call>', '<tool_call>{"name":"other"}</tool_call>', []),
    ],
)
def test_calls_in_tags_are_read_and_the_rest_stays_text(
    text: str, content: str, arguments: list[str]
) -> None:
    assert reply_to(text) == (content, [("calculator", item) for item in arguments])


def test_calls_in_brackets_name_the_only_tool() -> None:
    assert reply_to("so [3+1] and [", "bracket") == ("so  and [", [("calculator", '{"expression":"3+1"}')])


@given(st.text(), st.sampled_from(["hermes", "bracket"]))
def test_reading_a_reply_is_total(text: str, style: Any) -> None:
    content, calls = reply_to(text, style)
    assert calls or content == text


@given(st.text(alphabet="ab<tool_call>["), st.lists(st.sampled_from(["<tool_call>", "[", "ab"]), max_size=3))
def test_final_text_of_a_stream_never_changes(text: str, openings: list[str]) -> None:
    """However the text goes on, an opening found in the whole of it lies behind what was sure before."""
    for count in range(len(text) + 1):
        sure = sure_length(text[:count], openings=openings)
        first = min((found for opening in openings if (found := text.find(opening)) >= 0), default=len(text))
        assert sure <= max(first, 0)
        assert sure <= count


def test_unfinished_characters_are_waited_for() -> None:
    assert sure_length("ab\N{REPLACEMENT CHARACTER}", openings=()) == 2


def test_call_made_without_arguments_is_read_back() -> None:
    assert (
        CalledTool("c1", "calculator", "{}")
        == read_messages(
            [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c1", "function": {"name": "calculator", "arguments": "{}"}}],
                }
            ]
        )[0].calls[0]
    )
