"""The Responses API with OpenAI's client: answers, tools, streams, conversations, refusals."""

from collections.abc import Callable
from typing import Any, cast

import openai
import pytest

from tests.integration.actor.gateway.harness import CALCULATOR, HELLO, gateway, with_config
from tests.unit.actor.gateway.fakes import ScriptedEngine
from tidegate.actor.gateway.chains import chains_to
from tidegate.actor.gateway.episodes import AgentEpisode

pytestmark = pytest.mark.integration

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3+1"}}\n</tool_call>'
TOOL: Any = {"type": "function", **CALCULATOR["function"]}


def by_last(**said: str) -> Callable[[str], str]:
    """The reply to the last of the texts in the context."""
    return lambda context: next(text for key, text in reversed(said.items()) if key in context)


def is_recorded_as_seen(episode: AgentEpisode, engine: ScriptedEngine) -> bool:
    """Whether the longest conversation is, token by token, what the engine read and wrote in its last call."""
    leaf = episode.recorder.longest()
    assert leaf is not None
    chain, (request, written) = chains_to([leaf])[0], engine.seen[-1]
    return [*chain.prompt_tokens_P.tolist(), *chain.tokens_T.tolist()] == [*request.context, *written.tokens]


async def test_text_is_answered_with_one_message() -> None:
    async with gateway(lambda _: "hi there") as harness:
        client = harness.client(harness.episode().api_key)
        answer = await client.responses.create(model="m", input="hello", instructions="be kind")
    assert (answer.status, answer.output_text, answer.model) == ("completed", "hi there", "m")
    assert answer.usage is not None
    [(request, written)] = harness.engine.seen
    assert answer.usage.input_tokens == len(request.context)
    assert answer.usage.output_tokens == len(written.tokens)
    assert answer.error is None


async def test_call_of_a_tool_and_its_result_continue_the_recorded_conversation() -> None:
    async with gateway(by_last(hello=f"let me see {CALL}", four="it is 4")) as harness:
        episode = harness.episode()
        client = harness.client(episode.api_key)
        first = await client.responses.create(model="m", input="hello", tools=[TOOL])
        assert [item.type for item in first.output] == ["message", "function_call"]
        call = cast("Any", first.output[1])
        assert (call.name, call.arguments) == ("calculator", '{"expression":"3+1"}')
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "four"}
        items: Any = [
            {"role": "user", "content": "hello"},
            *[item.model_dump() for item in first.output],
            result,
        ]
        second = await client.responses.create(model="m", input=items, tools=[TOOL])
        assert second.output_text == "it is 4"
        assert episode.recorder.num_turns == 2
        assert len(episode.recorder.leaves()) == 1, "one conversation"
        assert is_recorded_as_seen(episode, harness.engine)
    [tool_call] = episode.tool_calls
    assert (tool_call.name, tool_call.result) == ("calculator", "four")


async def test_previous_response_is_continued_by_its_id() -> None:
    async with gateway(by_last(hello=CALL, four="it is 4")) as harness:
        episode, other = harness.episode(), harness.episode()
        client = harness.client(episode.api_key)
        first = await client.responses.create(model="m", input="hello", tools=[TOOL])
        call = cast("Any", first.output[0])
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "four"}
        second = await client.responses.create(
            model="m", input=[result], previous_response_id=first.id, tools=[TOOL]
        )
        assert second.output_text == "it is 4"
        assert len(episode.recorder.leaves()) == 1
        with pytest.raises(openai.BadRequestError, match="no response") as refused:
            await harness.client(other.api_key).responses.create(
                model="m", input="more", previous_response_id=first.id
            )
        assert refused.value.code == "previous_response_not_found"


async def test_conversation_goes_on_whichever_interface_is_called() -> None:
    async with gateway(by_last(hello="one", more="two")) as harness:
        episode = harness.episode()
        client = harness.client(episode.api_key)
        first = await client.chat.completions.create(model="m", messages=HELLO)
        reply = {"role": "assistant", "content": first.choices[0].message.content}
        items: Any = [*HELLO, reply, {"role": "user", "content": [{"type": "input_text", "text": "more"}]}]
        await client.responses.create(model="m", input=items)
        assert len(episode.recorder.leaves()) == 1
        assert is_recorded_as_seen(episode, harness.engine)


async def test_stream_has_the_events_of_the_interface_and_the_same_end() -> None:
    async with gateway(lambda _: f"let me see {CALL}") as harness:
        episode = harness.episode()
        client = harness.client(episode.api_key)
        kinds: list[str] = []
        text = ""
        async with client.responses.stream(model="m", input="hello", tools=[TOOL]) as stream:
            async for event in stream:
                kinds.append(event.type)
                if event.type == "response.output_text.delta":
                    text += event.delta
            final = await stream.get_final_response()
        assert [item.type for item in final.output] == ["message", "function_call"]
        assert text == final.output_text
        assert text.strip() == "let me see"
        assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
        assert kinds[-1] == "response.completed"
        assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 2
        assert "response.function_call_arguments.done" in kinds
        plain = await client.responses.create(
            model="m", input="more", previous_response_id=final.id, tools=[TOOL]
        )
        assert plain.status == "completed"
        assert len(episode.recorder.leaves()) == 1


async def test_reply_that_only_calls_has_no_message_in_a_stream() -> None:
    async with gateway(lambda _: f"\n{CALL}") as harness:
        client = harness.client(harness.episode().api_key)
        async with client.responses.stream(model="m", input="hello", tools=[TOOL]) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
    assert [item.type for item in final.output] == ["function_call"]
    assert "response.output_text.delta" not in kinds


async def test_reply_that_was_cut_is_incomplete() -> None:
    async with gateway(lambda _: "a long reply") as harness:
        client = harness.client(harness.episode().api_key)
        answer = await client.responses.create(model="m", input="hello", max_output_tokens=3)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"temperature": 0.3}, "temperature"),
        ({"text": {"format": {"type": "json_object"}}}, "response_format"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "messages[0].tool_calls[0]"),
        ({"extra_body": {"n": 2}}, "n"),
        ({"extra_body": {"stop": "x"}}, "stop"),
        ({"extra_body": {"return_token_ids": True}}, "return_token_ids"),
        ({"extra_body": {"frequency_penalty": 0.5}}, "frequency_penalty"),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    async with gateway(lambda _: "hi") as harness:
        client = harness.client(harness.episode().api_key)
        with pytest.raises(openai.BadRequestError) as refused:
            await cast("Any", client).responses.create(**{"model": "m", "input": "hello", **fields})
    assert refused.value.param == named
    assert harness.engine.seen == []


async def test_neutral_values_of_inference_servers_are_accepted_and_others_refused() -> None:
    neutral = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "min_tokens": 0, "ignore_eos": False}
    async with gateway(lambda _: "hi") as harness:
        client = harness.client(harness.episode().api_key)
        await client.chat.completions.create(model="m", messages=HELLO, extra_body=neutral)
        for name, value in (("top_k", 20), ("min_p", 0.1), ("repetition_penalty", 1.2), ("ignore_eos", True)):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model="m", messages=HELLO, extra_body={name: value})
            assert refused.value.param == name


async def test_token_ids_are_returned_where_they_are_asked_for() -> None:
    body = {"return_token_ids": True}
    async with gateway(lambda _: "hi") as harness:
        client = harness.client(harness.episode().api_key)
        chat: Any = await client.chat.completions.create(model="m", messages=HELLO, extra_body=body)
        request, written = harness.engine.seen[-1]
        assert chat.prompt_token_ids == list(request.context)
        assert chat.choices[0].token_ids == list(written.tokens)
        text: Any = await client.completions.create(model="m", prompt="hello", extra_body=body)
        request, written = harness.engine.seen[-1]
        assert text.choices[0].prompt_token_ids == list(request.context)
        assert text.choices[0].token_ids == list(written.tokens)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="m", messages=HELLO, stream=True, extra_body=body)
        assert refused.value.param == "return_token_ids"


@pytest.mark.parametrize("unknown_fields", ["refuse", "ignore"])
async def test_unknown_field_is_refused_or_ignored_as_the_run_says(unknown_fields: str) -> None:
    body = {"cache_salt": "x", "chat_template_kwargs": {"enable_thinking": False}}
    async with gateway(lambda _: "hi", config=with_config(unknown_fields=unknown_fields)) as harness:
        client = harness.client(harness.episode().api_key)
        if unknown_fields == "ignore":
            await client.chat.completions.create(model="m", messages=HELLO, extra_body=body)
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model="m", messages=HELLO, extra_body={"min_p": 0.1})
        else:
            with pytest.raises(openai.BadRequestError, match="unknown_fields to ignore"):
                await client.chat.completions.create(model="m", messages=HELLO, extra_body=body)
