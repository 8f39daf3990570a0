"""OpenAI's client against the gateway: answers, streams, tools, refusals, and what is recorded of them."""

import asyncio
from typing import Any, cast

import openai
import pytest

from tests.integration.actor.gateway.harness import CALCULATOR, HELLO, gateway, with_config
from tests.support.service_harness import until
from tests.unit.actor.gateway.fakes import END_ID, ChatMlTokenizer, ScriptedEngine, group_task
from tidegate.actor.gateway.chains import chains_to
from tidegate.actor.gateway.episodes import AgentEpisode
from tidegate.core.records import Sampler

pytestmark = pytest.mark.integration

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3+1"}}\n</tool_call>'


def everything(engine: ScriptedEngine, index: int = -1) -> list[int]:
    """What the engine was given and wrote in one call."""
    request, written = engine.seen[index]
    return [*request.context, *written.tokens]


def recorded(episode: AgentEpisode) -> list[int]:
    leaf = episode.recorder.longest()
    assert leaf is not None
    chain = chains_to([leaf])[0]
    return [*chain.prompt_tokens_P.tolist(), *chain.tokens_T.tolist()]


async def test_chat_is_answered_counted_and_recorded() -> None:
    async with gateway(lambda _: "hi there") as harness:
        episode = harness.episode()
        answer = await harness.client(episode.api_key).chat.completions.create(model="any", messages=HELLO)
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "hi there")
    assert (choice.finish_reason, answer.object, answer.model) == ("stop", "chat.completion", "any")
    assert answer.usage is not None
    [(request, written)] = harness.engine.seen
    assert answer.usage.prompt_tokens == len(request.context)
    assert answer.usage.completion_tokens == len(written.tokens) == len("hi there") + 1
    assert recorded(episode) == everything(harness.engine)


async def test_continued_conversation_reuses_its_tokens() -> None:
    said = {"hello": "  one  ", "more": "two"}
    async with gateway(
        lambda context: next(text for key, text in reversed(said.items()) if key in context)
    ) as harness:
        episode = harness.episode()
        client = harness.client(episode.api_key)
        first = await client.chat.completions.create(model="m", messages=HELLO)
        # As many programs do it: the library's own object back, and the text without its spaces.
        reply = first.choices[0].message.model_dump()
        reply["content"] = reply["content"].strip()
        messages = [*HELLO, reply, {"role": "user", "content": "more"}]
        await client.chat.completions.create(model="m", messages=cast("Any", messages))
    before = everything(harness.engine, 0)
    request = harness.engine.seen[1][0]
    assert list(request.context[: len(before)]) == before
    assert before[-1] == END_ID
    assert request.context[len(before)] != END_ID, "the turn ends once"
    assert recorded(episode) == everything(harness.engine)
    assert episode.recorder.leaves() == [episode.recorder.longest()]


async def test_reply_cut_at_its_cap_gets_the_end_that_its_template_wants() -> None:
    async with gateway(lambda context: "much…" if "more" not in context else "two") as harness:
        episode = harness.episode(group_task(sampler=Sampler(max_new_tokens=4)))
        client = harness.client(episode.api_key)
        first = await client.chat.completions.create(model="m", messages=HELLO)
        assert first.choices[0].finish_reason == "length"
        messages = [*HELLO, first.choices[0].message, {"role": "user", "content": "more"}]
        await client.chat.completions.create(model="m", messages=cast("Any", messages))
    before = everything(harness.engine, 0)
    assert list(harness.engine.seen[1][0].context[: len(before) + 1]) == [*before, END_ID]
    leaf = episode.recorder.longest()
    assert leaf is not None
    chain = chains_to([leaf])[0]
    assert not chain.chosen_T[4], "an end that the policy did not write is not trained"


async def test_other_histories_are_chains_of_their_own() -> None:
    async with gateway(lambda _: "yes") as harness:
        episode = harness.episode()
        client = harness.client(episode.api_key)
        for text in ("hello", "good day"):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
        forged: Any = [*HELLO, {"role": "assistant", "content": "no"}, {"role": "user", "content": "more"}]
        await client.chat.completions.create(model="m", messages=forged)
    assert len(episode.recorder.leaves()) == 3
    assert all(leaf.parent is None for leaf in episode.recorder.leaves())


async def test_streamed_pieces_are_the_reply() -> None:
    async with gateway(lambda _: "a longer reply") as harness:
        harness.engine.hold = asyncio.Event()
        episode = harness.episode()
        stream = await harness.client(episode.api_key).chat.completions.create(
            model="m", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        pieces: list[str] = []
        reasons: list[str] = []
        usage = None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                if choice.finish_reason:
                    reasons.append(choice.finish_reason)
                if choice.delta.content:
                    harness.engine.hold.set()
    assert "".join(pieces) == "a longer reply"
    assert len([piece for piece in pieces if piece]) >= 2, "the first letter left before the last was written"
    assert reasons == ["stop"]
    assert usage is not None
    assert usage.completion_tokens == len("a longer reply") + 1
    assert recorded(episode) == everything(harness.engine)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("shows_tools", [False, True])
async def test_tool_results_extend_the_same_chain(*, stream: bool, shows_tools: bool) -> None:
    engine = ScriptedEngine(
        lambda context: f"thinking {CALL}" if "RESULT" not in context else "it is 4",
        tokenizer=ChatMlTokenizer(shows_tools=shows_tools),
    )
    async with gateway(engine.script, engine=engine) as harness:
        episode = harness.episode()
        client = harness.client(episode.api_key)
        if stream:
            content, call_id, name, arguments = "", "", "", ""
            async for chunk in await client.chat.completions.create(
                model="m", messages=HELLO, tools=[CALCULATOR], stream=True
            ):
                delta = chunk.choices[0].delta
                content += delta.content or ""
                for call in delta.tool_calls or ():
                    assert call.function is not None
                    call_id, name, arguments = (
                        call.id or "",
                        call.function.name or "",
                        call.function.arguments or "",
                    )
        else:
            first = await client.chat.completions.create(model="m", messages=HELLO, tools=[CALCULATOR])
            message = first.choices[0].message
            assert first.choices[0].finish_reason == "tool_calls"
            assert message.tool_calls is not None
            [made] = cast("Any", message.tool_calls)
            content, call_id = message.content or "", made.id
            name, arguments = made.function.name, made.function.arguments
        assert (content.strip(), name) == ("thinking", "calculator")
        # As frameworks do it: the call's JSON parsed and serialised again.
        assert arguments.replace(" ", "") == '{"expression":"3+1"}'
        reply = {
            "role": "assistant",
            "content": content,
            "tool_calls": [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": name, "arguments": '{"expression": "3+1"}'},
                }
            ],
        }
        messages: Any = [*HELLO, reply, {"role": "tool", "tool_call_id": call_id, "content": "RESULT 4"}]
        second = await client.chat.completions.create(model="m", messages=messages, tools=[CALCULATOR])
    assert second.choices[0].message.content == "it is 4"
    opening = engine.tokenizer.decode(engine.seen[0][0].context)
    assert "calculator" in opening, "the model reads which tools there are"
    assert ("<tools>" in opening) is not shows_tools
    assert len(episode.recorder.leaves()) == 1
    assert recorded(episode) == everything(engine)


async def test_text_that_is_no_call_of_a_declared_tool_stays_text() -> None:
    texts = ["<tool_call>{not json}</tool_call>", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>']
    for text in texts:
        async with gateway(lambda _, text=text: text) as harness:
            answer = await harness.client(harness.episode().api_key).chat.completions.create(
                model="m", messages=HELLO, tools=[CALCULATOR]
            )
        assert answer.choices[0].message.content == text
        assert answer.choices[0].message.tool_calls is None


async def test_stop_string_ends_a_reply_before_it_and_is_recorded_as_written() -> None:
    async with gateway(lambda _: "one STOP two") as harness:
        episode = harness.episode()
        answer = await harness.client(episode.api_key).chat.completions.create(
            model="m", messages=HELLO, stop=["STOP"]
        )
        await until(lambda: harness.engine.under_way == 0)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("one ", "stop")
    leaf = episode.recorder.longest()
    assert leaf is not None
    assert harness.engine.tokenizer.decode(leaf.tokens) == "one STOP"


async def test_choices_are_branches_and_the_next_call_extends_the_chosen_one() -> None:
    numbers = iter(range(100))
    async with gateway(lambda context: "end" if "more" in context else f"choice {next(numbers)}") as harness:
        episode = harness.episode()
        client = harness.client(episode.api_key)
        answer = await client.chat.completions.create(model="m", messages=HELLO, n=3)
        assert sorted(choice.message.content or "" for choice in answer.choices) == [
            f"choice {number}" for number in range(3)
        ]
        messages: Any = [*HELLO, answer.choices[1].message, {"role": "user", "content": "more"}]
        await client.chat.completions.create(model="m", messages=messages)
    assert len(episode.recorder.leaves()) == 3
    assert recorded(episode) == everything(harness.engine)
    assert len({request.seed for request, _ in harness.engine.seen}) == 4


async def test_logprobs_are_those_of_the_tokens() -> None:
    async with gateway(lambda _: "ab") as harness:
        answer = await harness.client(harness.episode().api_key).chat.completions.create(
            model="m", messages=HELLO, logprobs=True
        )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert [entry.logprob for entry in logprobs.content or ()] == harness.engine.seen[0][1].logprobs
    assert [entry.token for entry in logprobs.content or ()] == ["a", "b", ""]


async def test_raw_completions_extend_the_text_they_begin_with() -> None:
    async with gateway(lambda _: "def…") as harness:
        episode = harness.episode()
        client = harness.client(episode.api_key)
        first = await client.completions.create(model="m", prompt="abc", max_tokens=3, logprobs=0)
        assert first.choices[0].text == "def"
        streamed = await client.completions.create(model="m", prompt="abcdef ghi", max_tokens=3, stream=True)
        text = "".join([chunk.choices[0].text async for chunk in streamed])
    assert text == "def"
    assert len(episode.recorder.leaves()) == 1
    assert recorded(episode) == everything(harness.engine)
    assert harness.engine.tokenizer.decode(everything(harness.engine)) == "abcdef ghidef"


async def test_stop_string_that_an_agent_writes_again_is_read_once() -> None:
    async with gateway(lambda _: "def\nObs: hm") as harness:
        episode = harness.episode()
        client = harness.client(episode.api_key)
        first = await client.completions.create(model="m", prompt="abc", stop="\nObs:")
        assert first.choices[0].text == "def"
        await client.completions.create(model="m", prompt="abcdef\nObs: 7", stop="\nObs:")
    assert len(episode.recorder.leaves()) == 1
    request, _ = harness.engine.seen[-1]
    assert harness.engine.tokenizer.decode(request.context) == "abcdef\nObs: 7"


async def test_models_are_those_of_the_run() -> None:
    async with gateway(lambda _: "hi", config=with_config(models=("ours",))) as harness:
        client = harness.client(harness.episode().api_key)
        assert [model.id async for model in client.models.list()] == ["ours"]
        assert (await client.models.retrieve("ours")).id == "ours"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="other", messages=HELLO)
        assert caught.value.code == "model_not_found"


async def test_key_in_the_path_opens_the_same_episode() -> None:
    async with gateway(lambda _: "hi") as harness:
        episode = harness.episode()
        client = harness.client("unused", path=f"/key/{episode.api_key}/v1")
        await client.chat.completions.create(model="m", messages=HELLO)
        assert episode.recorder.num_turns == 1
