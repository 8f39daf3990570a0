"""Episodes in child processes for the threads of sessions, whose calls block until the event loop answers."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tidegate.core.errors import RecordError
from tidegate.environment.conversations.port import Conversation, ConversationTurn
from tidegate.environment.own_code.episodes import OwnEpisode, OwnEpisodes
from tidegate.environment.tasks.port import Problem

T = TypeVar("T")


class BlockingEpisodes:
    """Fulfils ``session_envs.Episodes``; called in threads of the process whose event loop it was made in."""

    def __init__(self, episodes: OwnEpisodes) -> None:
        """``episodes``: started in the running event loop."""
        self._episodes = episodes
        self._loop = asyncio.get_running_loop()

    @property
    def deterministic(self) -> bool:
        """As the user's class says."""
        return self._episodes.is_deterministic

    def problem(self, seed: int) -> Problem:
        """Never: which problems there are is known to the task queue alone.

        Raises:
            RecordError: always.
        """
        raise RecordError(f"{self._episodes.env_id} needs a problem", fix="send one with Reset")

    def begin(self, problem: Problem, seed: int) -> Conversation:
        """Begin an episode. Raises as ``OwnEpisodes.begin``."""
        return _BlockingEpisode(self, self.wait(self._episodes.begin(problem, seed=seed)))

    def end(self, episode: Conversation) -> None:
        """Forget the episode in its process."""
        if isinstance(episode, _BlockingEpisode):
            self.wait(self._episodes.end(episode.inner))

    def reply(self, episode: OwnEpisode, text: str) -> ConversationTurn:
        """Take a turn. Raises as ``OwnEpisodes.reply``."""
        return self.wait(self._episodes.reply(episode, text))

    def wait(self, answer: Coroutine[Any, Any, T]) -> T:
        """What the event loop answers; bounded by the deadlines of the processes."""
        return asyncio.run_coroutine_threadsafe(answer, self._loop).result()


class _BlockingEpisode:
    """Fulfils ``conversations.port.Conversation``."""

    def __init__(self, episodes: BlockingEpisodes, inner: OwnEpisode) -> None:
        self._episodes = episodes
        self.inner = inner

    @property
    def opening(self) -> str:
        return self.inner.opening

    def reply(self, text: str) -> ConversationTurn:
        return self._episodes.reply(self.inner, text)
