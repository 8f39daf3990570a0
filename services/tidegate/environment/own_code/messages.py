"""The questions of a worker to the child processes of own code, and their answers."""

from typing import Annotated, TypeAlias

import msgspec

from tidegate.environment.conversations.port import ToolUse
from tidegate.environment.judgements import (
    COMPONENT_CHARS_MAX,
    COMPONENTS_MAX,
    LOG_CHARS_MAX,
)
from tidegate.environment.tasks.port import Problem
from tidegate.runtime.own_code.failures import TRACEBACK_CHARS_MAX

CHILD = "tidegate.environment.own_code.child"
# Of one reply of a conversation: a policy's context holds far less.
OBSERVATION_CHARS_MAX = 1 << 17
TOOLS_MAX = 64

_Line = Annotated[str, msgspec.Meta(max_length=1000)]
_Name = Annotated[str, msgspec.Meta(max_length=COMPONENT_CHARS_MAX)]


class ScoreQuestion(msgspec.Struct, frozen=True, array_like=True, tag="score"):
    """A completion to score."""

    problem: Problem
    completion: str


class BeginQuestion(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    """Begin an episode."""

    episode: str
    problem: Problem
    seed: int


class ReplyQuestion(msgspec.Struct, frozen=True, array_like=True, tag="reply"):
    """Take a turn of an episode."""

    episode: str
    text: str


class EndQuestion(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """Forget an episode."""

    episode: str


Question: TypeAlias = ScoreQuestion | BeginQuestion | ReplyQuestion | EndQuestion


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The code is loaded; ``where`` the function is defined."""

    where: _Line
    is_conversation: bool = False
    is_deterministic: bool = True


class Scored(msgspec.Struct, frozen=True, array_like=True, tag="scored"):
    """A score, whose numbers the worker still checks."""

    reward: float
    components: Annotated[dict[_Name, float], msgspec.Meta(max_length=COMPONENTS_MAX)]
    log: Annotated[str, msgspec.Meta(max_length=LOG_CHARS_MAX)]


class Replied(msgspec.Struct, frozen=True, array_like=True, tag="replied"):
    """The next observation of an episode; ``score`` with its last turn."""

    observation: Annotated[str, msgspec.Meta(max_length=OBSERVATION_CHARS_MAX)]
    score: Scored | None = None
    truncated: bool = False
    tools: Annotated[tuple[ToolUse, ...], msgspec.Meta(max_length=TOOLS_MAX)] = ()


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """What the code raised or returned instead. ``spent``: the process is of no use any more."""

    why: _Line
    kind: _Line
    where: _Line
    traceback: Annotated[str, msgspec.Meta(max_length=TRACEBACK_CHARS_MAX + 1)]
    retryable: bool = False
    retry_after_s: float = 0.0
    spent: bool = False


Answer: TypeAlias = Ready | Scored | Replied | Failed

ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
