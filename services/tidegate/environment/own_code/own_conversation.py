"""An episode of a user's conversation as the platform plays it, with the short forms that a user may write.

``opening`` is the observation before the first turn. ``reply(text)`` returns the next observation as a text; a number
or a ``Score`` to end the episode with that reward; or a ``ConversationTurn`` for more.
"""

from typing import Any

from tidegate.core.errors import ConfigError
from tidegate.environment.conversations.port import ConversationTurn
from tidegate.environment.judgements import score_of


class OwnConversation:
    """Fulfils ``conversations.port.Conversation`` around the user's object."""

    def __init__(self, episode: Any, *, written: str) -> None:
        """``written``: its reference, for errors.

        Raises:
            ConfigError: the object is no episode.
        """
        if not isinstance(getattr(episode, "opening", None), str) or not callable(
            getattr(episode, "reply", None)
        ):
            raise ConfigError(
                f"{written}: begin() returned {type(episode).__name__}, which is no episode",
                why="an episode has a text `opening` and a method `reply(text)`",
                fix="return an object with both",
            )
        self._episode = episode

    @property
    def opening(self) -> str:
        """The observation before the first turn."""
        return self._episode.opening

    def close(self) -> None:
        """Let the episode release what it holds, where it has a method ``close``; it is over, or ended early.

        Raises:
            BaseException: what the code raised.
        """
        close: Any = getattr(self._episode, "close", None)
        if callable(close):
            close()

    def reply(self, text: str) -> ConversationTurn:
        """Take a turn.

        Raises:
            NoScoreError: the reply is neither a text nor a reward.
            BaseException: what the code raised.
        """
        reply: Any = self._episode.reply(text)
        match reply:
            case str():
                return ConversationTurn(observation=reply)
            case ConversationTurn():
                return reply
            case _:
                return ConversationTurn(observation="", score=score_of(reply))
