"""OpenAI's client against the gateway: answers, streams, tools, refusals, and what is recorded of them."""

import asyncio
from typing import Any, cast

import openai
import pytest
from aiohttp import ClientSession

from tests.integration.actor.gateway.house import OPERATOR_KEY, gateway, with_config
from tests.support.room import until
from tests.unit.actor.gateway.fakes import END_ID, ChatMlTokenizer, ScriptedEngine, group_task
from tidegate.actor.gateway.chains import chain_to
from tidegate.actor.gateway.episodes import Episode
from tidegate.core.errors import UnavailableError
from tidegate.core.records import Sampler

pytestmark = pytest.mark.integration

CALCULATOR: Any = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Computes.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "3+1"}}\n</tool_call>'
HELLO: Any = [{"role": "user", "content": "hello"}]


def everything(engine: ScriptedEngine, index: int = -1) -> list[int]:
    """What the engine was given and wrote in one call."""
    request, written = engine.seen[index]
    return [*request.context, *written.tokens]


def recorded(episode: Episode) -> list[int]:
    leaf = episode.recorder.longest()
    assert leaf is not None
    chain = chain_to(leaf)
    return [*chain.prompt_tokens_P.tolist(), *chain.tokens_T.tolist()]


async def test_chat_is_answered_counted_and_recorded() -> None:
    async with gateway(lambda _: "hi there") as house:
        episode = house.episode()
        answer = await house.client(episode.api_key).chat.completions.create(model="any", messages=HELLO)
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "hi there")
    assert (choice.finish_reason, answer.object, answer.model) == ("stop", "chat.completion", "any")
    assert answer.usage is not None
    [(request, written)] = house.engine.seen
    assert answer.usage.prompt_tokens == len(request.context)
    assert answer.usage.completion_tokens == len(written.tokens) == len("hi there") + 1
    assert recorded(episode) == everything(house.engine)


async def test_conversation_that_goes_on_reuses_what_was_written_token_by_token() -> None:
    said = {"hello": "  one  ", "more": "two"}
    async with gateway(
        lambda context: next(text for key, text in reversed(said.items()) if key in context)
    ) as house:
        episode = house.episode()
        client = house.client(episode.api_key)
        first = await client.chat.completions.create(model="m", messages=HELLO)
        # As many programs do it: the library's own object back, and the text without its spaces.
        reply = first.choices[0].message.model_dump()
        reply["content"] = reply["content"].strip()
        messages = [*HELLO, reply, {"role": "user", "content": "more"}]
        await client.chat.completions.create(model="m", messages=cast("Any", messages))
    before = everything(house.engine, 0)
    request = house.engine.seen[1][0]
    assert list(request.context[: len(before)]) == before
    assert before[-1] == END_ID
    assert request.context[len(before)] != END_ID, "the turn ends once"
    assert recorded(episode) == everything(house.engine)
    assert episode.recorder.leaves() == [episode.recorder.longest()]


async def test_reply_cut_at_its_cap_gets_the_end_that_its_template_wants() -> None:
    async with gateway(lambda context: "much…" if "more" not in context else "two") as house:
        episode = house.episode(group_task(sampler=Sampler(max_new_tokens=4)))
        client = house.client(episode.api_key)
        first = await client.chat.completions.create(model="m", messages=HELLO)
        assert first.choices[0].finish_reason == "length"
        messages = [*HELLO, first.choices[0].message, {"role": "user", "content": "more"}]
        await client.chat.completions.create(model="m", messages=cast("Any", messages))
    before = everything(house.engine, 0)
    assert list(house.engine.seen[1][0].context[: len(before) + 1]) == [*before, END_ID]
    leaf = episode.recorder.longest()
    assert leaf is not None
    chain = chain_to(leaf)
    assert not chain.chosen_T[4], "an end that the policy did not write is not trained"


async def test_other_histories_are_chains_of_their_own() -> None:
    async with gateway(lambda _: "yes") as house:
        episode = house.episode()
        client = house.client(episode.api_key)
        for text in ("hello", "good day"):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
        forged: Any = [*HELLO, {"role": "assistant", "content": "no"}, {"role": "user", "content": "more"}]
        await client.chat.completions.create(model="m", messages=forged)
    assert len(episode.recorder.leaves()) == 3
    assert all(leaf.parent is None for leaf in episode.recorder.leaves())


async def test_streamed_pieces_are_the_reply() -> None:
    async with gateway(lambda _: "a longer reply") as house:
        house.engine.hold = asyncio.Event()
        episode = house.episode()
        stream = await house.client(episode.api_key).chat.completions.create(
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
                    house.engine.hold.set()
    assert "".join(pieces) == "a longer reply"
    assert len([piece for piece in pieces if piece]) >= 2, "the first letter left before the last was written"
    assert reasons == ["stop"]
    assert usage is not None
    assert usage.completion_tokens == len("a longer reply") + 1
    assert recorded(episode) == everything(house.engine)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("shows_tools", [False, True])
async def test_tools_are_called_and_their_results_go_on_the_same_chain(
    *, stream: bool, shows_tools: bool
) -> None:
    engine = ScriptedEngine(
        lambda context: f"thinking {CALL}" if "RESULT" not in context else "it is 4",
        tokenizer=ChatMlTokenizer(shows_tools=shows_tools),
    )
    async with gateway(engine.script, engine=engine) as house:
        episode = house.episode()
        client = house.client(episode.api_key)
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
        # As frameworks do it: the call's JSON read and written anew.
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
        async with gateway(lambda _, text=text: text) as house:
            answer = await house.client(house.episode().api_key).chat.completions.create(
                model="m", messages=HELLO, tools=[CALCULATOR]
            )
        assert answer.choices[0].message.content == text
        assert answer.choices[0].message.tool_calls is None


async def test_stop_string_ends_a_reply_before_it_and_is_recorded_as_written() -> None:
    async with gateway(lambda _: "one STOP two") as house:
        episode = house.episode()
        answer = await house.client(episode.api_key).chat.completions.create(
            model="m", messages=HELLO, stop=["STOP"]
        )
        await until(lambda: house.engine.under_way == 0)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("one ", "stop")
    leaf = episode.recorder.longest()
    assert leaf is not None
    assert house.engine.tokenizer.decode(leaf.tokens) == "one STOP"


async def test_choices_are_branches_and_the_next_call_goes_on_from_the_one_it_took() -> None:
    numbers = iter(range(100))
    async with gateway(lambda context: "end" if "more" in context else f"choice {next(numbers)}") as house:
        episode = house.episode()
        client = house.client(episode.api_key)
        answer = await client.chat.completions.create(model="m", messages=HELLO, n=3)
        assert sorted(choice.message.content or "" for choice in answer.choices) == [
            f"choice {number}" for number in range(3)
        ]
        messages: Any = [*HELLO, answer.choices[1].message, {"role": "user", "content": "more"}]
        await client.chat.completions.create(model="m", messages=messages)
    assert len(episode.recorder.leaves()) == 3
    assert recorded(episode) == everything(house.engine)
    assert len({request.seed for request, _ in house.engine.seen}) == 4


async def test_logprobs_are_those_of_the_tokens() -> None:
    async with gateway(lambda _: "ab") as house:
        answer = await house.client(house.episode().api_key).chat.completions.create(
            model="m", messages=HELLO, logprobs=True
        )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert [entry.logprob for entry in logprobs.content or ()] == house.engine.seen[0][1].logprobs
    assert [entry.token for entry in logprobs.content or ()] == ["a", "b", ""]


async def test_raw_completions_extend_the_text_they_begin_with() -> None:
    async with gateway(lambda _: "def…") as house:
        episode = house.episode()
        client = house.client(episode.api_key)
        first = await client.completions.create(model="m", prompt="abc", max_tokens=3, logprobs=0)
        assert first.choices[0].text == "def"
        streamed = await client.completions.create(model="m", prompt="abcdef ghi", max_tokens=3, stream=True)
        text = "".join([chunk.choices[0].text async for chunk in streamed])
    assert text == "def"
    assert len(episode.recorder.leaves()) == 1
    assert recorded(episode) == everything(house.engine)
    assert house.engine.tokenizer.decode(everything(house.engine)) == "abcdef ghidef"


async def test_models_are_those_of_the_run() -> None:
    async with gateway(lambda _: "hi", config=with_config(models=("ours",))) as house:
        client = house.client(house.episode().api_key)
        assert [model.id async for model in client.models.list()] == ["ours"]
        assert (await client.models.retrieve("ours")).id == "ours"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="other", messages=HELLO)
        assert caught.value.code == "model_not_found"


async def test_key_in_the_path_opens_the_same_episode() -> None:
    async with gateway(lambda _: "hi") as house:
        episode = house.episode()
        client = house.client("unused", path=f"/key/{episode.api_key}/v1")
        await client.chat.completions.create(model="m", messages=HELLO)
        assert episode.recorder.num_turns == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 0.5}, "temperature"),
        ({"top_p": 0.9}, "top_p"),
        ({"n": 99}, "n"),
        ({"n": 2, "stream": True}, "n"),
        ({"frequency_penalty": 1.0}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"logprobs": True, "top_logprobs": 3}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required", "tools": [CALCULATOR]}, "tool_choice"),
        ({"stop": ["", "a"]}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"extra_body": {"best_of_all": 1}}, None),
    ],
)
async def test_what_cannot_be_given_is_refused_in_the_apis_words(fields: Any, param: str | None) -> None:
    async with gateway(lambda _: "hi") as house:
        episode = house.episode()
        with pytest.raises(openai.BadRequestError) as caught:
            await house.client(episode.api_key).chat.completions.create(
                **{"model": "m", "messages": HELLO, **fields}
            )
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert caught.value.message
    assert episode.recorder.num_turns == 0


async def test_sampling_of_the_call_gives_way_where_the_run_says_so() -> None:
    async with gateway(lambda _: "hi", config=with_config(sampling="override")) as house:
        await house.client(house.episode().api_key).chat.completions.create(
            model="m", messages=HELLO, temperature=0.0
        )
    assert house.engine.seen[0][0].sampler.temperature == 1.0


async def test_conversation_longer_than_the_context_is_refused() -> None:
    engine = ScriptedEngine(lambda _: "hi", context_length=20)
    async with gateway(engine.script, engine=engine) as house:
        with pytest.raises(openai.BadRequestError) as caught:
            await house.client(house.episode().api_key).chat.completions.create(model="m", messages=HELLO)
    assert caught.value.code == "context_length_exceeded"


async def test_wrong_key_is_unauthorised_and_opens_nothing() -> None:
    async with gateway(lambda _: "hi") as house:
        one, other = house.episode(), house.episode(sample_index=1)
        forged = f"tg-{one.episode_id}-{other.api_key.rpartition('-')[2]}"
        for key in ("nonsense", forged, one.reward_key, f"tg-{one.episode_id}-", "tg-x", OPERATOR_KEY):
            with pytest.raises(openai.AuthenticationError) as caught:
                await house.client(key).chat.completions.create(model="m", messages=HELLO)
            assert caught.value.code == "invalid_api_key"
        house.table.close(other)
        with pytest.raises(openai.AuthenticationError):
            await house.client(other.api_key).models.list()
    assert one.recorder.num_turns == other.recorder.num_turns == 0


async def test_one_episode_never_goes_on_from_anothers_conversation() -> None:
    async with gateway(lambda _: "secret") as house:
        one, other = house.episode(), house.episode(sample_index=1)
        first = await house.client(one.api_key).chat.completions.create(model="m", messages=HELLO)
        messages: Any = [*HELLO, first.choices[0].message, {"role": "user", "content": "more"}]
        await house.client(other.api_key).chat.completions.create(model="m", messages=messages)
    [leaf] = other.recorder.leaves()
    assert leaf.parent is None


async def test_calls_past_those_an_episode_may_have_under_way_are_told_to_come_again() -> None:
    async with gateway(lambda _: "hi", config=with_config(calls_max=1)) as house:
        house.engine.hold = asyncio.Event()
        episode = house.episode()
        client = house.client(episode.api_key)
        first = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO))
        await until(lambda: house.engine.under_way == 1)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="m", messages=HELLO)
        assert caught.value.response.headers["Retry-After"] == "1"
        house.engine.hold.set()
        await first
        await client.chat.completions.create(model="m", messages=HELLO)
    assert house.stats.value("gateway_refused_429_total") == 1


async def test_turns_of_an_episode_are_bounded() -> None:
    async with gateway(lambda _: "hi", config=with_config(turns_max=1)) as house:
        client = house.client(house.episode().api_key)
        await client.chat.completions.create(model="m", messages=HELLO)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="m", messages=HELLO)
    assert caught.value.code == "turns_exhausted"


async def test_body_larger_than_the_bound_is_refused() -> None:
    async with gateway(lambda _: "hi", config=with_config(request_bytes_max=1024)) as house:
        with pytest.raises(openai.APIStatusError) as caught:
            await house.client(house.episode().api_key).chat.completions.create(
                model="m", messages=[{"role": "user", "content": "x" * 4096}]
            )
    assert caught.value.status_code == 413


@pytest.mark.parametrize("stream", [False, True])
async def test_engine_that_is_away_is_unavailable_and_records_nothing(*, stream: bool) -> None:
    engine = ScriptedEngine(lambda _: "hi")
    engine.error = UnavailableError("The server is away")
    async with gateway(engine.script, engine=engine) as house:
        episode = house.episode()
        with pytest.raises(openai.InternalServerError) as caught:
            await house.client(episode.api_key).chat.completions.create(
                model="m", messages=HELLO, stream=stream
            )
    assert caught.value.status_code == 503
    assert caught.value.response.headers["Retry-After"] == "1"
    assert episode.recorder.num_turns == 0


async def test_agent_that_hangs_up_frees_the_engine_and_leaves_no_record() -> None:
    async with gateway(lambda _: "hi there") as house:
        house.engine.hold = asyncio.Event()
        episode = house.episode()
        stream = await house.client(episode.api_key).chat.completions.create(
            model="m", messages=HELLO, stream=True
        )
        await stream.close()
        await until(lambda: house.engine.under_way == 0)
    assert episode.recorder.num_turns == 0


async def test_unknown_paths_answer_in_the_apis_shape() -> None:
    async with (
        gateway(lambda _: "hi") as house,
        ClientSession() as session,
        session.get(f"{house.base}/v1/embeddings") as response,
    ):
        body = await response.json()
    assert response.status == 404
    assert body["error"]["type"] == "not_found_error"


async def test_reward_ends_an_episode_once_and_only_with_the_rewards_key() -> None:
    async with gateway(lambda _: "hi") as house, ClientSession() as session:
        episode = house.episode()
        url = f"{house.base}/tidegate/episodes/{episode.episode_id}/reward"

        async def post(key: str, body: Any) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            async with session.post(url, json=body, headers=headers) as response:
                return response.status

        assert await post(episode.api_key, {"reward": 1.0}) == 401, "an agent cannot reward itself"
        assert await post(episode.reward_key, {"reward": "much"}) == 400
        assert await post(episode.reward_key, {"reward": 1.0, "components": {"format": 0.5}}) == 200
        assert await post(episode.reward_key, {"reward": 0.0}) == 401, "its keys open nothing any more"
        with pytest.raises(openai.AuthenticationError):
            await house.client(episode.api_key).chat.completions.create(model="m", messages=HELLO)
    assert episode.reward is not None
    assert (episode.reward.reward, episode.reward.components) == (1.0, {"format": 0.5})


async def test_agents_of_http_are_given_what_waits_for_them() -> None:
    async with gateway(lambda _: "hi") as house, ClientSession() as session:
        operator = {"Authorization": f"Bearer {OPERATOR_KEY}"}
        url = f"{house.base}/tidegate/episodes"
        async with session.post(url, headers={"Authorization": "Bearer guess"}) as response:
            assert response.status == 401
        async with session.post(url, headers=operator) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
        episode = house.episode()
        house.table.offer(episode)
        async with session.post(url, headers=operator) as response:
            given = await response.json()
        assert given["task"]["prompt"] == "What is 12*(3+1)?"
        assert "answer" not in given["task"]
        client = openai.AsyncOpenAI(base_url=given["base_url"], api_key=given["api_key"], max_retries=0)
        await client.chat.completions.create(model="m", messages=HELLO)
        ended = f"{url}/{given['episode_id']}"
        async with session.delete(
            ended, headers={"Authorization": f"Bearer {given['reward_key']}"}
        ) as response:
            assert response.status == 200
    assert episode.ended.is_set()
    assert episode.recorder.num_turns == 1
