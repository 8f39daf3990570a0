"""The answer of ``DescribeEnvironment``: found once, from the start of the service, and kept.

The launcher describes the environment before it starts anything, and leaves the answer in the run folder; without one,
as in a cluster, this service opens a copy itself, in a thread, so that scoring goes on.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import structlog

from tidegate.core.errors import ConfigError, TidegateError, UnavailableError
from tidegate.core.spaces import EnvironmentDescription
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.described_environment import read_description
from tidegate.runtime.loading import load

# A call waits this long for an answer that is not found yet; the caller asks again.
ANSWER_WAIT_S = 5.0

Describe: TypeAlias = Callable[[WorkloadConfig], Awaitable[EnvironmentDescription]]


class EnvironmentAnswer:
    """The description of the run's environment, or why there is none. Holds one of them for good."""

    def __init__(
        self, workload: WorkloadConfig, describe: Describe, log: structlog.stdlib.BoundLogger
    ) -> None:
        """Begin at once where the run has segments."""
        self._workload = workload
        self._log = log
        self._found = asyncio.create_task(self._find(describe)) if workload.kind == "segments" else None

    async def get(self) -> EnvironmentDescription:
        """The description.

        Raises:
            UnavailableError: the environment is still being opened.
            ConfigError: the run has no segments, or the environment cannot be described.
            NotFoundError: there is no such environment, or what it needs is not installed.
        """
        if self._found is None:
            raise ConfigError("This run steps no environment", why="its workload is text")
        try:
            async with asyncio.timeout(ANSWER_WAIT_S):
                found = await asyncio.shield(self._found)
        except TimeoutError as error:
            raise UnavailableError(f"Environment {self._workload.env!r} is still being opened") from error
        if isinstance(found, TidegateError):
            raise found
        return found

    async def close(self) -> None:
        """Wait no longer for the answer."""
        if self._found is not None:
            self._found.cancel()
            await asyncio.gather(self._found, return_exceptions=True)

    async def _find(self, describe: Describe) -> EnvironmentDescription | TidegateError:
        """The answer, which is an error once and for all where the environment cannot be described."""
        try:
            description = await describe(self._workload)
        except TidegateError as error:
            self._log.error("environment_not_described", env=self._workload.env, error=str(error))
            return error
        self._log.info(
            "environment_described",
            env=description.env_id,
            observations=str(description.observation_space)[:200],
            actions=str(description.action_space)[:200],
            steps_per_cpu_s=round(description.steps_per_cpu_s),
        )
        return description


def describe_in(data: Path) -> Describe:
    """Describes from the answer in the run's folder of data, else by opening a copy in a thread."""

    async def describe(workload: WorkloadConfig) -> EnvironmentDescription:
        found = await asyncio.to_thread(read_description, data, workload)
        return found or await _in_thread(lambda: load("tidegate.vector_envs.describing:describe")(workload))

    return describe


async def _in_thread(call: Callable[[], EnvironmentDescription]) -> EnvironmentDescription:
    """The result of ``call`` in a daemon thread: an environment that hangs must not keep a stopped process alive.

    Raises:
        TidegateError: ``call`` raised, whatever it was.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[EnvironmentDescription] = loop.create_future()

    def work() -> None:
        found: EnvironmentDescription | TidegateError
        try:
            found = call()
        except Exception as error:  # environments are third-party code
            found = (
                error
                if isinstance(error, TidegateError)
                else TidegateError("The environment cannot be described", why=repr(error))
            )
        with contextlib.suppress(RuntimeError):  # the loop is closed: the service stopped meanwhile
            loop.call_soon_threadsafe(_set, result, found)

    threading.Thread(target=work, name="describe", daemon=True).start()
    return await result


def _set(
    result: asyncio.Future[EnvironmentDescription], found: EnvironmentDescription | TidegateError
) -> None:
    if result.done():
        return  # the service stopped meanwhile
    if isinstance(found, TidegateError):
        result.set_exception(found)
    else:
        result.set_result(found)
