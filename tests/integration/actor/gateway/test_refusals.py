"""The gateway's refusals and their messages; episodes over HTTP."""

import asyncio
from typing import Any

import openai
import pytest
from aiohttp import ClientSession

from tests.integration.actor.gateway.harness import CALCULATOR, HELLO, OPERATOR_KEY, gateway, with_config
from tests.support.service_harness import until
from tests.unit.actor.gateway.fakes import ScriptedEngine
from tidegate.catalogue import gateway as gateway_stats
from tidegate.core.errors import UnavailableError

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 0.5}, "temperature"),
        ({"top_p": 0.9}, "top_p"),
        ({"n": 99}, "n"),
        ({"n": 2, "stream": True}, "n"),
        ({"logprobs": True, "stream": True}, "logprobs"),
        ({"frequency_penalty": 1.0}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"logprobs": True, "top_logprobs": 3}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required", "tools": [CALCULATOR]}, "tool_choice"),
        ({"stop": ["", "a"]}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"extra_body": {"best_of_all": 1}}, None),
    ],
)
async def test_unsupported_parameters_are_refused_in_the_apis_format(fields: Any, param: str | None) -> None:
    arguments: Any = {"model": "m", "messages": HELLO, **fields}
    async with gateway(lambda _: "hi") as harness:
        episode = harness.episode()
        with pytest.raises(openai.BadRequestError) as caught:
            await harness.client(episode.api_key).chat.completions.create(**arguments)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert caught.value.message
    assert episode.recorder.num_turns == 0


async def test_sampling_of_the_run_overrides_the_calls_where_set() -> None:
    async with gateway(lambda _: "hi", config=with_config(sampling="override")) as harness:
        await harness.client(harness.episode().api_key).chat.completions.create(
            model="m", messages=HELLO, temperature=0.0
        )
    assert harness.engine.seen[0][0].sampler.temperature == 1.0


async def test_conversation_longer_than_the_context_is_refused() -> None:
    engine = ScriptedEngine(lambda _: "hi", context_length=20)
    async with gateway(engine.script, engine=engine) as harness:
        with pytest.raises(openai.BadRequestError) as caught:
            await harness.client(harness.episode().api_key).chat.completions.create(model="m", messages=HELLO)
    assert caught.value.code == "context_length_exceeded"


async def test_wrong_key_is_unauthorised_and_opens_nothing() -> None:
    async with gateway(lambda _: "hi") as harness:
        one, other = harness.episode(), harness.episode(sample_index=1)
        forged = f"tg-{one.episode_id}-{other.api_key.rpartition('-')[2]}"
        for key in ("nonsense", forged, one.reward_key, f"tg-{one.episode_id}-", "tg-x", OPERATOR_KEY):
            with pytest.raises(openai.AuthenticationError) as caught:
                await harness.client(key).chat.completions.create(model="m", messages=HELLO)
            assert caught.value.code == "invalid_api_key"
        harness.table.close(other)
        with pytest.raises(openai.AuthenticationError):
            await harness.client(other.api_key).models.list()
    assert one.recorder.num_turns == other.recorder.num_turns == 0


async def test_one_episode_never_extends_anothers_conversation() -> None:
    async with gateway(lambda _: "secret") as harness:
        one, other = harness.episode(), harness.episode(sample_index=1)
        first = await harness.client(one.api_key).chat.completions.create(model="m", messages=HELLO)
        messages: Any = [*HELLO, first.choices[0].message, {"role": "user", "content": "more"}]
        await harness.client(other.api_key).chat.completions.create(model="m", messages=messages)
    [leaf] = other.recorder.leaves()
    assert leaf.parent is None


async def test_calls_above_the_bound_of_an_episode_are_told_to_retry() -> None:
    async with gateway(lambda _: "hi", config=with_config(calls_max=1)) as harness:
        harness.engine.hold = asyncio.Event()
        episode = harness.episode()
        client = harness.client(episode.api_key)
        first = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO))
        await until(lambda: harness.engine.under_way == 1)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="m", messages=HELLO)
        assert caught.value.response.headers["Retry-After"] == "1"
        harness.engine.hold.set()
        await first
        await client.chat.completions.create(model="m", messages=HELLO)
    assert harness.stats.value(gateway_stats.REFUSED.member("429")) == 1


async def test_turns_of_an_episode_are_bounded() -> None:
    async with gateway(lambda _: "hi", config=with_config(turns_max=1)) as harness:
        client = harness.client(harness.episode().api_key)
        await client.chat.completions.create(model="m", messages=HELLO)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="m", messages=HELLO)
    assert caught.value.code == "turns_exhausted"


async def test_body_larger_than_the_bound_is_refused() -> None:
    async with gateway(lambda _: "hi", config=with_config(request_bytes_max=1024)) as harness:
        with pytest.raises(openai.APIStatusError) as caught:
            await harness.client(harness.episode().api_key).chat.completions.create(
                model="m", messages=[{"role": "user", "content": "x" * 4096}]
            )
    assert caught.value.status_code == 413


@pytest.mark.parametrize("stream", [False, True])
async def test_engine_that_is_away_is_unavailable_and_records_nothing(*, stream: bool) -> None:
    engine = ScriptedEngine(lambda _: "hi")
    engine.error = UnavailableError("The server is away")
    async with gateway(engine.script, engine=engine) as harness:
        episode = harness.episode()
        with pytest.raises(openai.InternalServerError) as caught:
            await harness.client(episode.api_key).chat.completions.create(
                model="m", messages=HELLO, stream=stream
            )
    assert caught.value.status_code == 503
    assert caught.value.response.headers["Retry-After"] == "1"
    assert episode.recorder.num_turns == 0


async def test_agent_that_hangs_up_frees_the_engine_and_leaves_no_record() -> None:
    async with gateway(lambda _: "hi there") as harness:
        harness.engine.hold = asyncio.Event()
        episode = harness.episode()
        stream = await harness.client(episode.api_key).chat.completions.create(
            model="m", messages=HELLO, stream=True
        )
        await stream.close()
        await until(lambda: harness.engine.under_way == 0)
    assert episode.recorder.num_turns == 0


async def test_calls_of_an_episode_that_ends_are_cut_off() -> None:
    async with gateway(lambda _: "hi there") as harness:
        harness.engine.hold = asyncio.Event()
        episode = harness.episode()
        call = asyncio.create_task(
            harness.client(episode.api_key).chat.completions.create(model="m", messages=HELLO)
        )
        await until(lambda: harness.engine.under_way == 1)
        harness.table.close(episode)
        await until(lambda: harness.engine.under_way == 0)
        with pytest.raises(openai.APIConnectionError):
            await call
        assert harness.table.num_open == 0
    assert episode.recorder.num_turns == 0


async def test_unknown_paths_answer_in_the_apis_format() -> None:
    async with (
        gateway(lambda _: "hi") as harness,
        ClientSession() as session,
        session.get(f"{harness.base}/v1/embeddings") as response,
    ):
        body = await response.json()
    assert response.status == 404
    assert body["error"]["type"] == "not_found_error"


async def test_reward_ends_an_episode_once_and_only_with_the_rewards_key() -> None:
    async with gateway(lambda _: "hi") as harness, ClientSession() as session:
        episode = harness.episode()
        url = f"{harness.base}/tidegate/episodes/{episode.episode_id}/reward"

        async def post(key: str, body: Any) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            async with session.post(url, json=body, headers=headers) as response:
                return response.status

        assert await post(episode.api_key, {"reward": 1.0}) == 401, "an agent cannot reward itself"
        assert await post(episode.reward_key, {"reward": "much"}) == 400
        assert await post(episode.reward_key, {"reward": 1.0, "components": {"format": 0.5}}) == 200
        again = {"reward": 1.0, "components": {"format": 0.5}}
        assert await post(episode.reward_key, again) == 200, "a client whose answer was lost asks again"
        assert await post(episode.reward_key, {"reward": 0.0}) == 409
        assert await post(episode.api_key, again) == 401
        harness.table.close(episode)
        assert await post(episode.reward_key, again) == 200
        assert await post(episode.reward_key, {"reward": 0.0}) == 409
        assert await post(episode.api_key, again) == 401
        with pytest.raises(openai.AuthenticationError):
            await harness.client(episode.api_key).chat.completions.create(model="m", messages=HELLO)
    assert episode.reward is not None
    assert (episode.reward.reward, episode.reward.components) == (1.0, {"format": 0.5})


async def test_agents_over_http_claim_waiting_episodes() -> None:
    async with gateway(lambda _: "hi") as harness, ClientSession() as session:
        operator = {"Authorization": f"Bearer {OPERATOR_KEY}"}
        url = f"{harness.base}/tidegate/episodes"
        async with session.post(url, headers={"Authorization": "Bearer guess"}) as response:
            assert response.status == 401
        async with session.post(url, headers=operator) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
        episode = harness.episode()
        harness.table.offer(episode)
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
