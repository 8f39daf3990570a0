"""Plays the episodes of environments of `verifiers`: ``python -m tidegate.environment.libraries.verifiers_worker``.

A worker of ``actor.gateway``: it finds address, key and workload in its environment, claims episodes, lets the
environment call the policy through the OpenAI API, and posts its reward. Consumes episodes of the gateway, produces
rewards, waits for the next episode, unblocked by the gateway within ``WAIT_S``. One that fails ends without a reward.
Where a rubric compares the episodes of a group, it claims whole groups (``verifiers_groups``).
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

from tidegate.core.errors import ConfigError
from tidegate.environment.libraries.episode_failures import is_cancelled, line_of
from tidegate.environment.libraries.verifiers_env import VerifiersEnv
from tidegate.environment.libraries.verifiers_gateway import TIMEOUT_S, Claimed, GatewayClient
from tidegate.environment.libraries.verifiers_groups import GroupWorker
from tidegate.environment.libraries.verifiers_settings import MODEL, named_environment
from tidegate.environment.libraries.verifiers_task import row_of
from tidegate.runtime.own_code.loading import make_importable


class WorkerEnv(msgspec.Struct, frozen=True):
    """One environment of the run file."""

    env: str
    env_kwargs: dict[str, Any]


class WorkerWorkload(msgspec.Struct, frozen=True):
    """The part of the run file that a worker needs. ``envs``: by the names that tasks have."""

    envs: dict[str, WorkerEnv]
    files_dir: str


class WorkerSettings(msgspec.Struct, frozen=True):
    """What the actor gives its workers. ``num_episodes``: that this one plays at once; ``name``: of its process."""

    url: str
    key: str
    num_episodes: int
    workload: WorkerWorkload
    name: str = ""


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
            name=environ.get("TIDEGATE_WORKER", ""),
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
        self, envs: Mapping[str, VerifiersEnv], gateway: GatewayClient, *, name: str, num_episodes: int
    ) -> None:
        """``envs``: by the names that tasks have. ``name``: of this process, as the actor knows it."""
        self._envs = envs
        self._gateway = gateway
        self._name = name
        self._num_episodes = num_episodes

    async def run(self) -> None:
        """Never returns by itself.

        Raises:
            ConfigError: the gateway refuses this worker.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(self._num_episodes):
                group.create_task(self._play_all())

    async def _play_all(self) -> None:
        while True:
            episode = await self._gateway.claim(Claimed, {"worker": self._name})
            if episode is not None:
                await self.play(episode)

    async def play(self, episode: Claimed) -> None:
        """One episode, to its reward or to its end without one."""
        try:
            env = self._envs[episode.task["env"]]
            row = row_of(env, str(episode.task["prompt_id"]))
            async with asyncio.timeout(episode.deadline_s):
                verdict = await env.play(row, episode.seat, model=MODEL)
        except (Exception, asyncio.CancelledError) as error:  # the environment is third-party code
            if is_cancelled():
                raise
            sys.stderr.write(f"episode {episode.episode_id}: {line_of(error)}\n")
            path = f"episodes/{episode.episode_id}"
            await self._gateway.end(path, episode.reward_key, why=line_of(error))
            return
        if not await self._gateway.post(episode.reward_url, episode.reward_key, verdict):
            await self._gateway.end(f"episodes/{episode.episode_id}", episode.reward_key)


async def work(settings: WorkerSettings) -> None:
    """Load the environments and play.

    Raises:
        ConfigError: one of them cannot be loaded, or the gateway refuses this worker.
    """
    make_importable(settings.workload.files_dir)
    envs = {
        name: VerifiersEnv(named_environment(each.env, each.env_kwargs))
        for name, each in settings.workload.envs.items()
    }
    num_episodes = settings.num_episodes
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as http:
        gateway = GatewayClient(http, url=settings.url, key=settings.key)
        if any(env.scores_groups for env in envs.values()):
            worker = GroupWorker(envs, gateway, name=settings.name, episodes_max=num_episodes)
        else:
            worker = EpisodeWorker(envs, gateway, name=settings.name, num_episodes=num_episodes)
        try:
            await worker.run()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed


def main() -> None:
    """Play until the actor ends this process."""
    try:
        asyncio.run(work(settings_of(os.environ)))
    except ConfigError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
