"""A judge over HTTP: its requests, and every failure in between."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web

from tests.integration.environment.judge_server import ScriptedJudge, serving_judge
from tidegate.core.errors import ConfigError, DeadlineError, RecordError, TidegateError, UnavailableError
from tidegate.environment.sandbox.linux import LinuxSandbox
from tidegate.environment.sandbox.port import SandboxLimits
from tidegate.environment.tasks.port import Problem
from tidegate.environment.verifiers.judge import REPLY_BYTES_MAX, JudgeVerifier
from tidegate.environment.verifiers.port import VerifierBusyError
from tidegate.environment.verifiers.registry import make_verifier
from tidegate.environment.verifiers.settings import JudgeSettings

pytestmark = pytest.mark.integration
PROBLEM = Problem("47+38", "47+38=", "085", "carries-1")


@pytest.fixture
async def server() -> AsyncIterator[ScriptedJudge]:
    async with serving_judge() as judge:
        yield judge


@asynccontextmanager
async def judge_of(
    base_url: str, *, environ: dict[str, str] | None = None, **fields: object
) -> AsyncGenerator[JudgeVerifier, None]:
    settings = msgspec.convert(
        {"base_url": base_url, "model": "grader", "kind": "judge", **fields}, JudgeSettings
    )
    judge = make_verifier(settings, environ=environ or {}, isolated=LinuxSandbox, limits=SandboxLimits())
    assert isinstance(judge, JudgeVerifier)
    await judge.start()
    yield judge
    await judge.close()


async def test_judge_is_shown_the_completion_and_its_grade_is_scaled(server: ScriptedJudge) -> None:
    server.script = ["It is right.\nScore: 7"]
    async with judge_of(server.base_url) as judge:
        score = await judge.score(PROBLEM, "085")
    assert (score.reward, score.components) == (0.7, {"raw": 7.0})
    assert score.log == "It is right.\nScore: 7"
    [request] = server.requests
    assert (request["model"], request["temperature"]) == ("grader", 0.0)
    assert "Reply to be judged:\n085" in request["messages"][0]["content"]
    assert server.keys == [""]


async def test_key_comes_from_the_named_variable_and_is_sent_as_a_token(server: ScriptedJudge) -> None:
    async with judge_of(server.base_url, environ={"JUDGE_KEY": "k-1"}, api_key_env="JUDGE_KEY") as judge:
        await judge.score(PROBLEM, "085")
    assert server.keys == ["Bearer k-1"]
    with pytest.raises(ConfigError, match="JUDGE_KEY is empty"):
        async with judge_of(server.base_url, api_key_env="JUDGE_KEY"):
            pass


async def test_judge_that_never_answers_ends_at_its_deadline_and_frees_its_place(
    server: ScriptedJudge,
) -> None:
    server.script = [None, "Score: 10"]
    # Long enough for the second answer on a loaded machine.
    async with judge_of(server.base_url, deadline_s=3.0, max_concurrent=1) as judge:
        with pytest.raises(DeadlineError, match=r"within 3 s") as late:
            await judge.score(PROBLEM, "085")
        assert late.value.retryable
        assert (await judge.score(PROBLEM, "085")).reward == 1.0


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [({"Retry-After": "7"}, 7.0), ({"Retry-After": "Mon, 01 Jan 2035 00:00:00 GMT"}, 0.0), ({}, 0.0)],
)
async def test_busy_judge_defines_the_retry_time(
    server: ScriptedJudge, header: dict[str, str], wait_s: float
) -> None:
    server.script = [web.Response(status=429, text="slow down", headers=header)]
    async with judge_of(server.base_url) as judge:
        with pytest.raises(VerifierBusyError, match="slow down") as busy:
            await judge.score(PROBLEM, "085")
    assert (busy.value.retry_after_s, busy.value.retryable) == (wait_s, True)


@pytest.mark.parametrize(
    ("status", "retryable"),
    [(500, True), (503, True), (408, True), (400, False), (401, False), (404, False), (307, False)],
)
async def test_transient_statuses_are_distinguished_from_permanent_ones(
    server: ScriptedJudge, status: int, retryable: bool
) -> None:
    server.script = [
        web.Response(status=status, text="why it failed", headers={"Location": "http://127.0.0.1:9/"})
    ]
    async with judge_of(server.base_url) as judge:
        with pytest.raises(TidegateError, match="why it failed") as failed:
            await judge.score(PROBLEM, "085")
    assert failed.value.retryable == retryable
    assert isinstance(failed.value, UnavailableError) == retryable


@pytest.mark.parametrize(
    "garbage",
    [
        web.Response(body=b""),
        web.Response(body=b"\xff\xfe"),
        web.Response(text="<html>"),
        web.Response(text='{"usage": ' + "[" * 100_000),
        web.Response(text='{"choices": []}'),
        web.Response(text='{"choices": [{"message": {"content": null}}]}'),
        web.Response(text='{"choices": [{"message": {"content": "a fine reply"}}]}'),
        web.Response(body=b"x" * (REPLY_BYTES_MAX + 1)),
    ],
)
async def test_invalid_reply_is_no_grade_and_is_not_retried(
    server: ScriptedJudge, garbage: web.Response
) -> None:
    server.script = [garbage]
    async with judge_of(server.base_url) as judge:
        with pytest.raises(RecordError) as failed:
            await judge.score(PROBLEM, "085")
    assert not failed.value.retryable


async def test_unreachable_judge_is_retryable() -> None:
    async with judge_of("http://127.0.0.1:9/v1") as judge:
        with pytest.raises(UnavailableError, match="cannot be reached"):
            await judge.score(PROBLEM, "085")


async def test_requests_in_flight_are_bounded(server: ScriptedJudge) -> None:
    async with judge_of(server.base_url, max_concurrent=3) as judge:
        scores = await asyncio.gather(*(judge.score(PROBLEM, str(number)) for number in range(20)))
    assert [score.reward for score in scores] == [0.5] * 20
    assert server.under_way_max <= 3
    assert isinstance(judge, JudgeVerifier)
