"""The environment service's answer: found once, kept with its errors, and never waited for without end."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import structlog

from tests.support.environments import CARTPOLE
from tidegate.core.errors import ConfigError, NotFoundError, UnavailableError
from tidegate.core.spaces import EnvironmentDescription
from tidegate.environment import describing
from tidegate.environment.describing import EnvironmentAnswer, describe_in
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.described_environment import write_description

LOG: structlog.stdlib.BoundLogger = structlog.get_logger("test")
SEGMENTS = WorkloadConfig(kind="segments", env="CartPole-v1")


def counted(
    find: Callable[[], Awaitable[EnvironmentDescription]], calls: list[WorkloadConfig]
) -> Callable[[WorkloadConfig], Awaitable[EnvironmentDescription]]:
    async def describe(workload: WorkloadConfig) -> EnvironmentDescription:
        calls.append(workload)
        return await find()

    return describe


async def test_environment_is_described_once_for_all_who_ask() -> None:
    calls: list[WorkloadConfig] = []

    async def find() -> EnvironmentDescription:
        return CARTPOLE

    answer = EnvironmentAnswer(SEGMENTS, counted(find, calls), LOG)
    assert [await answer.get() for _ in range(3)] == [CARTPOLE] * 3
    assert calls == [SEGMENTS]
    await answer.close()


async def test_reason_why_there_is_no_description_is_kept() -> None:
    calls: list[WorkloadConfig] = []

    async def find() -> EnvironmentDescription:
        raise NotFoundError("There is no environment 'Nope-v1'")

    answer = EnvironmentAnswer(SEGMENTS, counted(find, calls), LOG)
    for _ in range(2):
        with pytest.raises(NotFoundError, match="Nope-v1"):
            await answer.get()
    assert len(calls) == 1
    await answer.close()


async def test_caller_is_told_to_ask_again_while_the_environment_is_being_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(describing, "ANSWER_WAIT_S", 0.01)
    opened = asyncio.Event()

    async def find() -> EnvironmentDescription:
        await opened.wait()
        return CARTPOLE

    answer = EnvironmentAnswer(SEGMENTS, counted(find, []), LOG)
    with pytest.raises(UnavailableError, match="still being opened") as raised:
        await answer.get()
    assert raised.value.retryable
    opened.set()
    monkeypatch.setattr(describing, "ANSWER_WAIT_S", 60.0)
    assert await answer.get() == CARTPOLE
    await answer.close()


async def test_closing_ends_a_description_that_is_never_found() -> None:
    async def find() -> EnvironmentDescription:
        await asyncio.Event().wait()
        return CARTPOLE

    answer = EnvironmentAnswer(SEGMENTS, counted(find, []), LOG)
    await asyncio.sleep(0)
    await answer.close()


async def test_run_of_text_has_no_environment_to_describe() -> None:
    text = WorkloadConfig(kind="text", env="arithmetic")
    answer = EnvironmentAnswer(text, counted(_never, []), LOG)
    with pytest.raises(ConfigError, match="steps no environment"):
        await answer.get()
    await answer.close()


async def _never() -> EnvironmentDescription:
    raise AssertionError("text describes no environment")


async def test_answer_of_the_launcher_is_taken_without_opening_the_environment(tmp_path: Path) -> None:
    unknown = WorkloadConfig(kind="segments", env="NoSuchGame-v0")
    write_description(tmp_path, unknown, CARTPOLE)
    assert await describe_in(tmp_path)(unknown) == CARTPOLE


async def test_without_an_answer_of_the_launcher_a_copy_is_opened(tmp_path: Path) -> None:
    found = await describe_in(tmp_path)(SEGMENTS)
    assert (found.observation_space, found.action_space) == (
        CARTPOLE.observation_space,
        CARTPOLE.action_space,
    )
    with pytest.raises(NotFoundError, match="NoSuchGame-v0"):
        await describe_in(tmp_path)(WorkloadConfig(kind="segments", env="NoSuchGame-v0"))


def test_description_that_is_found_after_the_service_stopped_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, failures = threading.Event(), list[threading.ExceptHookArgs]()
    monkeypatch.setattr(threading, "excepthook", failures.append)

    def find(_workload: WorkloadConfig) -> EnvironmentDescription:
        opened.wait(60.0)
        return CARTPOLE

    def load_find(_path: str) -> Callable[[WorkloadConfig], EnvironmentDescription]:
        return find

    monkeypatch.setattr(describing, "load", load_find)

    async def stop_meanwhile() -> threading.Thread:
        asking = asyncio.ensure_future(describe_in(tmp_path)(SEGMENTS))
        async with asyncio.timeout(60.0):
            while not (found := [each for each in threading.enumerate() if each.name == "describe"]):
                await asyncio.sleep(0.01)
        asking.cancel()
        return found[-1]

    thread = asyncio.run(stop_meanwhile())
    opened.set()
    thread.join(60.0)
    assert not thread.is_alive()
    assert failures == []
