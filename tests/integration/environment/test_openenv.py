"""Episodes of an OpenEnv server, in the processes of own code."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.environment.openenv_server import CountdownServer, serving_countdown
from tests.support.service_harness import until
from tidegate.core.errors import ConfigError, RecordError, TidegateError, UnavailableError
from tidegate.environment.conversations.port import ConversationTurn
from tidegate.environment.judgements import VerifierFailed
from tidegate.environment.libraries.names import library_task_of
from tidegate.environment.libraries.openenv import OpenEnvTask
from tidegate.environment.own_code.episodes import OwnEpisode, OwnEpisodes
from tidegate.environment.own_code.pool import OwnCodeSettings
from tidegate.environment.tasks.port import Problem
from tidegate.runtime.config import WorkloadConfig

pytestmark = [pytest.mark.integration, pytest.mark.slow]
FAILURES: list[VerifierFailed] = []


@pytest.fixture
async def server() -> AsyncIterator[CountdownServer]:
    async with serving_countdown() as server:
        yield server


def workload_of(server: CountdownServer, *, turns_max: int = 4, **settings: Any) -> WorkloadConfig:
    return WorkloadConfig(kind="text", env=f"openenv:{server.url}", turns_max=turns_max, env_kwargs=settings)


def problem(seed: int) -> Problem:
    return Problem(f"seed-{seed}", f"seed {seed}", "", "all")


@pytest.fixture
async def episodes(server: CountdownServer) -> AsyncIterator[OwnEpisodes]:
    FAILURES.clear()
    workload = workload_of(server, deadline_s=5.0, message_bytes_max=65_536, reset={"level": "hard"})
    reference = library_task_of(workload, folder="")
    assert reference is not None
    bounds = OwnCodeSettings(1, deadline_s=30.0, start_deadline_s=120.0, memory_bytes=4 << 30)
    opened = OwnEpisodes(reference, bounds, report=lambda failed, problem, text: FAILURES.append(failed))
    await opened.start()
    yield opened
    await opened.close()


async def play(episodes: OwnEpisodes, episode: OwnEpisode, *turns: str) -> list[ConversationTurn]:
    return [await episodes.reply(episode, turn) for turn in turns]


async def test_an_episode_is_reset_stepped_and_worth_the_sum_of_its_rewards(
    server: CountdownServer, episodes: OwnEpisodes
) -> None:
    episode = await episodes.begin(problem(7), seed=3)
    assert episode.opening == "7 left"
    assert server.resets == [{"seed": 7, "level": "hard"}]
    first, last = await play(episodes, episode, "2", "5")
    assert (first.observation, first.done) == ("5 left", False)
    assert last.score is not None
    assert (last.score.reward, last.truncated) == (7.0, False)
    assert last.score.components == {"sum": 7.0, "last": 5.0, "steps": 2.0}
    await until(lambda: server.num_open == 0)
    assert server.num_ended == 1, "the session ends by its own message: OpenEnv logs an error otherwise"


async def test_turns_that_are_used_up_end_an_episode_with_its_rewards(episodes: OwnEpisodes) -> None:
    *_, last = await play(episodes, await episodes.begin(problem(9), seed=0), "1", "2", "what?", "-1")
    assert last.score is not None
    assert (last.score.reward, last.truncated, last.observation) == (3.0, True, "invalid action: negative")


async def test_a_text_that_is_no_action_is_answered_and_not_sent(episodes: OwnEpisodes) -> None:
    [reply] = await play(episodes, await episodes.begin(problem(9), seed=0), "two")
    assert (reply.observation, reply.done) == ("invalid action: an action is of type integer", False)


async def test_an_episode_that_is_ended_early_frees_its_place_at_the_server(
    server: CountdownServer, episodes: OwnEpisodes
) -> None:
    episode = await episodes.begin(problem(5), seed=0)
    assert server.num_open == 1
    await episodes.end(episode)
    await until(lambda: server.num_open == 0)


@pytest.mark.parametrize(
    ("turn", "kind", "said"),
    [
        ("13", RecordError, "EXECUTION_ERROR: a defect"),
        ("99", RecordError, "no JSON object"),
        ("100", UnavailableError, "ended the session"),
        ("102", UnavailableError, "ended the session"),
    ],
)
async def test_a_fault_of_the_server_ends_its_own_episode_alone(
    server: CountdownServer, episodes: OwnEpisodes, turn: str, kind: type[TidegateError], said: str
) -> None:
    bad = await episodes.begin(problem(5), seed=0)
    good = await episodes.begin(problem(6), seed=0)
    with pytest.raises(kind, match=said):
        await episodes.reply(bad, turn)
    assert (await episodes.reply(good, "1")).observation == "5 left"
    assert len(FAILURES) == 1


async def test_a_server_without_room_or_away_is_asked_again_later(
    server: CountdownServer, episodes: OwnEpisodes
) -> None:
    server.room = 0
    with pytest.raises(UnavailableError, match="no room for another session"):
        await episodes.begin(problem(5), seed=0)
    server.room, server.is_away = 8, True
    with pytest.raises(UnavailableError, match="No OpenEnv server answers"):
        await episodes.begin(problem(5), seed=0)
    assert len(FAILURES) == 1, "one outage is one failure, however often it is asked"
    server.is_away = False
    assert (await episodes.begin(problem(5), seed=0)).opening == "5 left"


async def test_a_server_that_does_not_answer_costs_its_deadline(server: CountdownServer) -> None:
    task = OpenEnvTask(url=server.url, turns_max=4, deadline_s=0.5)
    episode = await asyncio.to_thread(task.begin, problem(5), 0)
    with pytest.raises(UnavailableError, match=r"did not answer within 0\.5 s"):
        await asyncio.to_thread(episode.reply, "101")


async def test_problems_are_seeds_and_instructions_come_before_the_first_observation(
    server: CountdownServer,
) -> None:
    task = OpenEnvTask(url=server.url, turns_max=2, seeds=10, first_seed=5, instructions="Take all.")
    problems = await asyncio.to_thread(task.problems)
    assert [each["prompt_id"] for each in problems] == [f"seed-{seed}" for seed in range(5, 15)]
    episode = await asyncio.to_thread(task.begin, problem(5), 0)
    assert episode.opening == "Take all.\n5 left"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"action": "steal"}, r"no field 'steal'.*has take"),
        ({"url": "http://127.0.0.1:9"}, "No OpenEnv server answers at http://127.0.0.1:9"),
    ],
)
async def test_a_start_says_that_no_server_answers_or_does_not_fit(
    server: CountdownServer, settings: dict[str, Any], said: str
) -> None:
    task = OpenEnvTask(**{"url": server.url, **settings})
    with pytest.raises(ConfigError, match=said):
        await asyncio.to_thread(task.problems)


async def test_an_observation_without_a_wanted_field_is_a_mistake_of_the_run_file(
    server: CountdownServer,
) -> None:
    task = OpenEnvTask(url=server.url, observation=["board"])
    with pytest.raises(RecordError, match=r"no field 'board'.*has left, metadata"):
        await asyncio.to_thread(task.begin, problem(5), 0)


async def test_episodes_go_to_each_of_several_servers_in_turn_and_round_one_that_is_away(
    server: CountdownServer,
) -> None:
    async with serving_countdown() as other:
        task = OpenEnvTask(url=server.url, servers=[other.url], turns_max=2)
        assert len(await asyncio.to_thread(task.problems)) == 1024
        for _ in range(4):
            await asyncio.to_thread(task.begin, problem(5), 0)
        assert (len(server.resets), len(other.resets)) == (2, 2)
        other.is_away = True
        for _ in range(2):
            await asyncio.to_thread(task.begin, problem(5), 0)
        assert (len(server.resets), len(other.resets)) == (4, 2)
        server.is_away = True
        with pytest.raises(UnavailableError, match="No OpenEnv server answers"):
            await asyncio.to_thread(task.begin, problem(5), 0)


async def test_a_start_names_the_one_of_several_servers_that_does_not_answer(server: CountdownServer) -> None:
    task = OpenEnvTask(url=server.url, servers=["http://127.0.0.1:9"])
    with pytest.raises(ConfigError, match=r"No OpenEnv server answers at http://127\.0\.0\.1:9"):
        await asyncio.to_thread(task.problems)
