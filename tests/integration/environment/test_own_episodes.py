"""Episodes of a user's conversation in child processes, through the sessions of the service."""

import asyncio
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from tidegate.core.errors import ConfigError, NotFoundError, RecordError, UnavailableError
from tidegate.environment.judgements import VerifierFailed
from tidegate.environment.own_code.blocking_episodes import BlockingEpisodes
from tidegate.environment.own_code.episodes import OwnEpisodes
from tidegate.environment.own_code.messages import ANSWERS, CHILD, Answer, Ready
from tidegate.environment.own_code.pool import OwnCodeSettings
from tidegate.environment.session_envs import make_session_env
from tidegate.environment.sessions import SessionLimits, SessionTable
from tidegate.environment.tasks.port import Problem
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.own_code.process import ChildProcess
from tidegate.runtime.own_code.references import OwnReference, resolve

pytestmark = pytest.mark.integration
HERE = str(Path(__file__).parent)
GUESS = "own_tasks.py:Guess"
PROBLEM = Problem("7", "7?", "7", "low")
FAILURES: list[VerifierFailed] = []


def reference(name: str = GUESS) -> OwnReference:
    return resolve(name, kind="tasks", folder=HERE)


def episodes_of(name: str = GUESS, *, num_processes: int = 1) -> OwnEpisodes:
    bounds = OwnCodeSettings(num_processes, deadline_s=1.0, start_deadline_s=60.0, memory_bytes=4 << 30)
    return OwnEpisodes(reference(name), bounds, report=lambda failed, problem, text: FAILURES.append(failed))


@pytest.fixture
async def sessions() -> AsyncIterator[SessionTable]:
    FAILURES.clear()
    episodes = episodes_of()
    await episodes.start()
    table = SessionTable(
        partial(make_session_env, allowed_modules=(), own={GUESS: BlockingEpisodes(episodes)}),
        SessionLimits(max_sessions=8, idle_s=60.0, deadline_s=60.0),
        SystemClock(),
    )
    yield table
    await table.close_all()
    await episodes.close()


async def test_episodes_of_one_process_are_played_side_by_side(sessions: SessionTable) -> None:
    opened = [await sessions.open(GUESS, seed=seed, problem=PROBLEM) for seed in (1, 2)]
    assert [observation for _, observation in opened] == ["7?", "7?"]
    first, second = (session_id for session_id, _ in opened)
    assert (await sessions.step(first, action="ask")).observation == "turn 1 of 7, seed 1"
    assert (await sessions.step(second, action="ask")).observation == "turn 1 of 7, seed 2"
    assert (await sessions.step(first, action="ask")).observation == "turn 2 of 7, seed 1"
    last = await sessions.step(second, action="7")
    assert (last.reward, last.terminated) == (1.0, True)
    assert sessions.num_open == 1


async def test_first_answer_may_come_before_anybody_waits_for_it() -> None:
    child = await ChildProcess[Answer].start(
        CHILD, reference(), ANSWERS, memory_bytes=4 << 30, environ=os.environ
    )
    try:
        async with asyncio.timeout(60):
            await asyncio.wait({child._pipes.answer})  # pyright: ignore[reportPrivateUsage]
        assert isinstance(await child.first_answer(deadline_s=5.0), Ready)
    finally:
        await child.close()


async def test_episode_is_opened_again_by_its_turns(sessions: SessionTable) -> None:
    _, observation = await sessions.open(GUESS, seed=1, problem=PROBLEM, actions=["ask", "ask"])
    assert observation == "turn 2 of 7, seed 1"


async def test_mistake_ends_its_own_episode_and_is_reported_with_its_line(sessions: SessionTable) -> None:
    bad, _ = await sessions.open(GUESS, seed=1, problem=PROBLEM)
    good, _ = await sessions.open(GUESS, seed=2, problem=PROBLEM)
    for mistake, said in (
        ("raise", r"KeyError at \S*own_tasks\.py:[0-9]+ in reply"),
        ("none", "it returned None"),
    ):
        with pytest.raises(RecordError, match=said):
            await sessions.step(bad, action=mistake)
    assert (await sessions.step(good, action="ask")).observation == "turn 1 of 7, seed 2"
    assert [each.kind for each in FAILURES] == ["KeyError", "NoneType"]


@pytest.mark.parametrize(("mistake", "kind"), [("exit", "ended"), ("hang", "deadline")])
async def test_process_that_is_lost_is_replaced_and_its_episodes_can_be_opened_again(
    sessions: SessionTable, mistake: str, kind: str
) -> None:
    bad, _ = await sessions.open(GUESS, seed=1, problem=PROBLEM)
    other, _ = await sessions.open(GUESS, seed=2, problem=PROBLEM)
    with pytest.raises(UnavailableError, match=kind):
        await sessions.step(bad, action=mistake)
    with pytest.raises(NotFoundError):
        await sessions.step(other, action="ask")
    _, observation = await sessions.open(GUESS, seed=2, problem=PROBLEM, actions=["ask"])
    assert observation == "turn 1 of 7, seed 2"
    assert [each.kind for each in FAILURES] == [kind]


async def test_processes_share_the_episodes() -> None:
    episodes = episodes_of(num_processes=2)
    await episodes.start()
    opened = await asyncio.gather(*(episodes.begin(PROBLEM, seed=seed) for seed in range(4)))
    assert len({each.child for each in opened}) == 2
    for each in opened:
        await episodes.end(each)
    await episodes.close()
    assert not any(each.child.is_alive for each in opened)


async def test_task_without_episodes_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no episodes of several turns"):
        await episodes_of("own_tasks.py:Reverse").start()
