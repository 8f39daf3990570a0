"""Plays groups of episodes for environments of `verifiers` whose rubric compares them.

A group is claimed whole, played by this process alone, and rewarded in one post: either all of its episodes have their
verdicts, or none. When this process dies, the actor gives the group to another one, from its beginning.
"""

import asyncio
import sys
from collections.abc import Mapping

from tidegate.environment.libraries.episode_failures import is_cancelled, line_of
from tidegate.environment.libraries.verifiers_env import VerifiersEnv
from tidegate.environment.libraries.verifiers_gateway import ClaimedGroup, GatewayClient
from tidegate.environment.libraries.verifiers_settings import MODEL, EpisodeVerdict
from tidegate.environment.libraries.verifiers_task import row_of

# Of a group's deadline, for its episodes; the rest is for its rubric and the post.
PLAY_SHARE = 0.8


class GroupWorker:
    """Plays groups until the process ends, of ``episodes_max`` episodes in sum, and one group more at most."""

    def __init__(
        self, envs: Mapping[str, VerifiersEnv], gateway: GatewayClient, *, name: str, episodes_max: int
    ) -> None:
        """``envs``: by the names that tasks have. ``name``: of this process, as the actor knows it."""
        self._envs = envs
        self._gateway = gateway
        self._name = name
        self._episodes_max = episodes_max
        self._num_playing = 0
        self._freed = asyncio.Event()

    async def run(self) -> None:
        """Never returns by itself.

        Raises:
            ConfigError: the gateway refuses groups.
        """
        params = {"groups": "true", "worker": self._name}
        async with asyncio.TaskGroup() as playing:
            while True:
                while self._num_playing >= self._episodes_max:
                    self._freed.clear()
                    await self._freed.wait()
                group = await self._gateway.claim(ClaimedGroup, params)
                if group is not None:
                    self._num_playing += len(group.episodes)
                    playing.create_task(self._hold(group))

    async def _hold(self, group: ClaimedGroup) -> None:
        try:
            await self.play(group)
        finally:
            self._num_playing -= len(group.episodes)
            self._freed.set()

    async def play(self, group: ClaimedGroup) -> None:
        """One group, to its rewards or to its end without any."""
        try:
            async with asyncio.timeout(group.deadline_s):
                verdicts = await self._verdicts(group)
        except (Exception, asyncio.CancelledError) as error:  # the environment is third-party code
            if is_cancelled():
                raise
            sys.stderr.write(f"group {group.group_id}: {line_of(error)}\n")
            await self._gateway.end(f"groups/{group.group_id}", group.reward_key, why=line_of(error))
            return
        rewards = {
            episode.episode_id: line_of(verdict) if isinstance(verdict, BaseException) else verdict
            for episode, verdict in zip(group.episodes, verdicts, strict=True)
        }
        if not await self._gateway.post(group.rewards_url, group.reward_key, {"rewards": rewards}):
            await self._gateway.end(
                f"groups/{group.group_id}", group.reward_key, why="its rewards were refused"
            )

    async def _verdicts(self, group: ClaimedGroup) -> list[EpisodeVerdict | BaseException]:
        task = group.episodes[0].task
        env = self._envs[task["env"]]
        row = row_of(env, str(task["prompt_id"]))
        seats = [episode.seat for episode in group.episodes]
        play_s = PLAY_SHARE * group.deadline_s
        if env.scores_groups:
            return await env.play_group(row, seats, model=MODEL, play_s=play_s)
        return await env.play_each(row, seats, model=MODEL, play_s=play_s)
