"""Sessions over gRPC: whole episodes, and errors that keep their kind."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import gymnasium
import msgspec
import pytest

from tests.support.broker import Broker
from tests.support.service_harness import channel_of_test, make_context, running, until
from tests.support.settings import make_settings
from tidegate.catalogue import environment as statistics
from tidegate.core.errors import (
    BackpressureError,
    ConflictError,
    NotFoundError,
    RecordError,
    StaleFolderError,
)
from tidegate.environment import main
from tidegate.environment.config import EnvironmentConfig
from tidegate.runtime.bus import Bus
from tidegate.wire.clients.environment import Completion, EnvironmentClient, EpisodeProblem

pytestmark = pytest.mark.integration
CONFIG = EnvironmentConfig(max_sessions=2)
CALCULATION = EpisodeProblem("12*(3+45)-7", "12*(3+45)-7=", "569", "signs-3")


@pytest.fixture
async def client(tmp_path: Path, nats: Broker, bus: Bus) -> AsyncIterator[EnvironmentClient]:
    settings = make_settings(tmp_path, broker_url=nats.url)
    async with running(main.build, CONFIG, make_context("environment", settings, bus=bus)) as context:
        yield EnvironmentClient(channel_of_test(context, "environment"))


async def test_episode_over_calls_equals_the_episode_in_process(client: EnvironmentClient) -> None:
    direct = gymnasium.make("CartPole-v1")
    observation, _ = direct.reset(seed=11)
    session_id, answer = await client.reset("CartPole-v1", seed=11)
    assert json.loads(answer) == observation.tolist()
    for turn in range(200):
        action = turn % 2
        step = await client.step(session_id, action=str(action))
        observation, reward, terminated, truncated, _ = direct.step(action)
        assert json.loads(step.observation) == observation.tolist()
        assert (step.reward, step.terminated, step.truncated) == (reward, terminated, truncated)
        if terminated or truncated:
            break
    with pytest.raises(NotFoundError, match="open another with Reset"):
        await client.step(session_id, action="0")
    await client.close(session_id)


async def test_text_task_is_a_session_of_one_turn_in_plain_text(client: EnvironmentClient) -> None:
    session_id, opening = await client.reset("arithmetic", seed=2)
    left, right = opening.rstrip("=").split("+")
    step = await client.step(session_id, action=f"{int(left) + int(right):03d}")
    assert (step.reward, step.terminated, step.log) == (1.0, True, "solved")
    assert step.components == {"exact": 1.0, "digits": 1.0}
    problem = EpisodeProblem("47+38", "47+38=", "085", "carries-1")
    session_id, opening = await client.reset("arithmetic", seed=2, problem=problem)
    assert opening == "47+38="
    assert (await client.step(session_id, action="084")).reward == 0.0


async def test_session_is_restored_on_another_worker_from_its_actions(client: EnvironmentClient) -> None:
    actions = ["0", "1", "1"]
    first, _ = await client.reset("CartPole-v1", seed=11)
    steps = [await client.step(first, action=action) for action in actions]
    second, observation = await client.reset("CartPole-v1", seed=11, actions=actions)
    assert observation == steps[-1].observation
    assert await client.step(first, action="0") == await client.step(second, action="0")
    await client.close(first)
    with pytest.raises(ConflictError, match="ended the episode"):
        await client.reset("CartPole-v1", seed=11, actions=["1"] * 40)


async def test_conversation_over_calls_reports_its_tools_and_ends_with_its_components(
    client: EnvironmentClient,
) -> None:
    session_id, opening = await client.reset("calculator", seed=0, problem=CALCULATION)
    assert opening == CALCULATION.prompt
    step = await client.step(session_id, action="[3+45]")
    assert (step.observation, step.terminated, step.components) == ("48", False, {})
    [call] = step.tool_calls
    assert (call.name, call.arguments, call.result) == ("calculator", "[3+45]", "48")
    assert call.started_at_s <= call.finished_at_s
    again, answer = await client.reset(
        "calculator", seed=0, problem=CALCULATION, actions=["[3+45]", "[12*48]"]
    )
    assert answer == "576"
    await client.step(again, action="[576-7]")
    end = await client.step(again, action="569")
    assert (end.reward, end.terminated, end.log) == (1.0, True, "solved")
    assert end.components == {"exact": 1.0, "steps": 1.0}


async def test_problem_of_another_environment_is_refused_and_holds_no_slot(client: EnvironmentClient) -> None:
    for _ in range(CONFIG.max_sessions + 1):
        with pytest.raises(RecordError, match="no problem of guess_number"):
            await client.reset("guess_number", seed=0, problem=CALCULATION)


async def test_python_runs_in_the_sandbox_or_no_session_is_opened(client: EnvironmentClient) -> None:
    problem = EpisodeProblem("q", "What is 6 times 7?", "42", "digits")
    try:
        session_id, _ = await client.reset("python_tool", seed=0, problem=problem)
    except StaleFolderError:  # FAILED_PRECONDITION on the wire; the sandbox's tests check the reason
        pytest.skip("this machine isolates nothing")
    step = await client.step(session_id, action="```python\nprint(6 * 7)\n```")
    assert step.observation == "42"
    end = await client.step(session_id, action="answer: 42")
    assert (end.reward, end.components) == (1.0, {"exact": 1.0, "ran": 1.0})


async def test_errors_over_the_wire_name_their_kind(client: EnvironmentClient) -> None:
    with pytest.raises(NotFoundError, match="Nope-v1"):
        await client.reset("Nope-v1", seed=0)
    with pytest.raises(NotFoundError, match="no session 'unknown'"):
        await client.step("unknown", action="0")
    session_id, _ = await client.reset("CartPole-v1", seed=0)
    with pytest.raises(RecordError, match="is no JSON"):
        await client.step(session_id, action="{not json")
    with pytest.raises(RecordError, match="not in Discrete"):
        await client.step(session_id, action="7")
    assert (await client.step(session_id, action="1")).reward == 1.0
    with pytest.raises(NotFoundError, match="no text task 'CartPole-v1'"):
        await client.score("CartPole-v1", [Completion("p", "1+1=", "2", "2")])


async def test_taken_slots_are_refused_until_one_is_closed(client: EnvironmentClient) -> None:
    first, _ = await client.reset("CartPole-v1", seed=0)
    await client.reset("CartPole-v1", seed=1)
    with pytest.raises(BackpressureError, match="All 2 sessions are taken"):
        await client.reset("CartPole-v1", seed=2)
    await client.close(first)
    await client.close(first)
    await client.reset("CartPole-v1", seed=2)


async def test_session_without_calls_idles_out(tmp_path: Path, nats: Broker, bus: Bus) -> None:
    settings = make_settings(tmp_path, broker_url=nats.url)
    config = msgspec.structs.replace(CONFIG, session_idle_s=0.1)
    async with running(main.build, config, make_context("environment", settings, bus=bus)) as context:
        client = EnvironmentClient(channel_of_test(context, "environment"))
        session_id, _ = await client.reset("CartPole-v1", seed=0)
        await until(lambda: context.stats.value(statistics.SESSIONS_IDLED) == 1)
        with pytest.raises(NotFoundError):
            await client.step(session_id, action="0")
