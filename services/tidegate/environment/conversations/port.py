"""The port of conversations: episodes of several turns about one problem, with replies in between.

An episode is a function of the problem, the seed and the texts of the turns, so a lost session is opened again by
replaying them. A conversation whose tools may answer differently declares it (``deterministic``); its verifier log then
records a replay.
"""

from typing import Protocol

import msgspec

from tidegate.environment.conversations.tools import Tools
from tidegate.environment.tasks.port import Problem, Score, TextTask


class ToolUse(msgspec.Struct, frozen=True):
    """One call of a tool, with its result."""

    name: str
    arguments: str
    result: str


class ConversationTurn(msgspec.Struct, frozen=True):
    """The reply to one turn of the policy.

    ``observation``: the reply that the policy reads next. ``score``: with the episode's last turn, the verdict on all
    of it. ``truncated``: it ended because its turns were used up. ``delay_s``: simulated latency of the tools; the
    caller waits for it, but not in a replay.
    """

    observation: str
    score: Score | None = None
    truncated: bool = False
    tools: tuple[ToolUse, ...] = ()
    delay_s: float = 0.0

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.score is not None


class Conversation(Protocol):
    """One episode. ``reply`` may block: it runs in a thread, one call at a time."""

    @property
    def opening(self) -> str:
        """The observation before the first turn."""
        ...

    def reply(self, text: str) -> ConversationTurn:
        """Take a turn. Total until the episode is done: any text has an answer."""
        ...


class ConversationTask(TextTask, Protocol):
    """A task of several turns. ``score`` of a single completion plays an episode of that one turn."""

    @property
    def deterministic(self) -> bool:
        """Whether a replay always gives the same episode."""
        ...

    def begin(self, problem: Problem, *, seed: int, tools: Tools) -> Conversation:
        """An episode about a problem; ``seed``: of its random draws and those of its tools.

        Raises:
            RecordError: the problem belongs to another task.
            TidegateError: a requirement of its tools is unavailable.
        """
        ...
