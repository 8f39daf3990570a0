"""Plays the episodes of environments of `verifiers`: ``python -m tidegate.environment.libraries.verifiers_worker``.

A worker of ``actor.gateway``: it finds address, key and workload in its environment, claims episodes, lets the
environment call the policy through the OpenAI API, and posts its reward. Consumes episodes of the gateway, produces
rewards, waits for the next episode, unblocked by the gateway within ``WAIT_S``. One that fails ends without a reward.
"""

import asyncio
import os
import sys
import traceback
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

from tidegate.core.errors import ConfigError
from tidegate.environment.libraries.verifiers_env import VerifiersEnv
from tidegate.environment.libraries.verifiers_settings import EpisodeVerdict, named_environment
from tidegate.environment.libraries.verifiers_task import row_of
from tidegate.runtime.own_code.loading import make_importable

WAIT_S = 20
TIMEOUT_S = 60.0
POST_ATTEMPTS = 3
PAUSE_S = 1.0
MODEL = "policy"


class WorkerEnv(msgspec.Struct, frozen=True):
    """One environment of the run file."""

    env: str
    env_kwargs: dict[str, Any]


class WorkerWorkload(msgspec.Struct, frozen=True):
    """The part of the run file that a worker needs. ``envs``: by the names that tasks have."""

    envs: dict[str, WorkerEnv]
    files_dir: str


class WorkerSettings(msgspec.Struct, frozen=True):
    """What the actor gives its workers. ``num_episodes``: that this one plays at once."""

    url: str
    key: str
    num_episodes: int
    workload: WorkerWorkload


class Claimed(msgspec.Struct, frozen=True):
    """An episode of the gateway, as far as it is needed here."""

    episode_id: str
    base_url: str
    api_key: str
    reward_url: str
    reward_key: str
    task: dict[str, Any]
    deadline_s: float


def settings_of(environ: Mapping[str, str]) -> WorkerSettings:
    """The settings in a worker's environment.

    Raises:
        ConfigError: it was not started by an actor.
    """
    try:
        return WorkerSettings(
            url=environ["TIDEGATE_GATEWAY_URL"],
            key=environ["TIDEGATE_GATEWAY_KEY"],
            num_episodes=int(environ["TIDEGATE_WORKER_EPISODES"]),
            workload=msgspec.json.decode(environ["TIDEGATE_WORKLOAD"], type=WorkerWorkload),
        )
    except (KeyError, ValueError, TypeError, msgspec.DecodeError) as error:
        raise ConfigError(
            "This program is a worker of actor.gateway",
            why=f"{error} is not in its environment",
            fix="set actor.gateway.workers in the run file",
        ) from error


class EpisodeWorker:
    """Plays ``num_episodes`` episodes at once until the process ends."""

    def __init__(
        self, envs: Mapping[str, VerifiersEnv], settings: WorkerSettings, http: aiohttp.ClientSession
    ) -> None:
        """``envs``: by the names that tasks have. ``http``: closed by the caller."""
        self._envs = envs
        self._settings = settings
        self._http = http

    async def run(self) -> None:
        """Never returns by itself."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._settings.num_episodes):
                group.create_task(self._play_all())

    async def _play_all(self) -> None:
        while True:
            episode = await self._claim()
            if episode is not None:
                await self.play(episode)

    async def play(self, episode: Claimed) -> None:
        """One episode, to its reward or to its end without one."""
        try:
            env = self._envs[episode.task["env"]]
            row = row_of(env, str(episode.task["prompt_id"]))
            async with asyncio.timeout(episode.deadline_s):
                played = await env.play(row, base_url=episode.base_url, api_key=episode.api_key, model=MODEL)
        except (Exception, asyncio.CancelledError) as error:  # the environment is third-party code
            if _is_cancelled():
                raise
            sys.stderr.write(f"episode {episode.episode_id}: {_line(error)}\n")
            await self._end(episode)
            return
        await self._post(episode, played)

    async def _claim(self) -> Claimed | None:
        try:
            async with self._http.post(
                f"{self._settings.url}/tidegate/episodes",
                params={"wait_s": str(WAIT_S)},
                headers={"Authorization": f"Bearer {self._settings.key}"},
            ) as answer:
                if answer.status == 200:
                    return msgspec.json.decode(await answer.read(), type=Claimed)
                if answer.status != 503:
                    sys.stderr.write(f"the gateway answered {answer.status} to a claim\n")
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            sys.stderr.write(f"the gateway cannot be asked: {_line(error)}\n")
        await asyncio.sleep(PAUSE_S)
        return None

    async def _post(self, episode: Claimed, played: EpisodeVerdict) -> None:
        """A reward that is posted twice is one reward, so that an answer that was lost costs nothing."""
        for _ in range(POST_ATTEMPTS):
            try:
                async with self._http.post(
                    episode.reward_url,
                    data=msgspec.json.encode(played),
                    headers={"Authorization": f"Bearer {episode.reward_key}"},
                ) as answer:
                    if answer.status >= 500:
                        continue
                    if answer.status != 200:
                        sys.stderr.write(f"episode {episode.episode_id}: its reward got {answer.status}\n")
                        await self._end(episode)
                    return
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(PAUSE_S)

    async def _end(self, episode: Claimed) -> None:
        address = f"{self._settings.url}/tidegate/episodes/{episode.episode_id}"
        try:
            async with self._http.delete(
                address, headers={"Authorization": f"Bearer {episode.reward_key}"}
            ) as answer:
                await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            return  # it idles out


def _is_cancelled() -> bool:
    """Whether this task is to end: a cancellation that an environment raises by itself ends its episode alone."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _line(error: BaseException) -> str:
    """An error and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}: {' '.join(str(error).split())[:400]}"


async def work(settings: WorkerSettings) -> None:
    """Load the environments and play."""
    make_importable(settings.workload.files_dir)
    envs = {
        name: VerifiersEnv(named_environment(each.env, each.env_kwargs))
        for name, each in settings.workload.envs.items()
    }
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        await EpisodeWorker(envs, settings, http).run()


def main() -> None:
    """Play until the actor ends this process."""
    try:
        asyncio.run(work(settings_of(os.environ)))
    except ConfigError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
