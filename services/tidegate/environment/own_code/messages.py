"""The frames between a worker and the child processes of own code: a length of four bytes, then MessagePack.

A child runs code that may do anything, so the worker decodes its frames into these types and nothing else (no pickle),
and every length has a bound.
"""

import struct
from typing import Annotated, TypeAlias

import msgspec

from tidegate.environment.judgements import (
    COMPONENT_CHARS_MAX,
    COMPONENTS_MAX,
    LOG_CHARS_MAX,
    TRACEBACK_CHARS_MAX,
)
from tidegate.environment.tasks.port import Problem

HEAD = struct.Struct("<I")
ANSWER_BYTES_MAX = 1 << 20
QUESTION_BYTES_MAX = 1 << 28

_Line = Annotated[str, msgspec.Meta(max_length=1000)]
_Name = Annotated[str, msgspec.Meta(max_length=COMPONENT_CHARS_MAX)]


class ScoreQuestion(msgspec.Struct, frozen=True, array_like=True):
    """A completion to score."""

    problem: Problem
    completion: str


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The code is loaded; ``where`` the function is defined."""

    where: _Line


class Scored(msgspec.Struct, frozen=True, array_like=True, tag="scored"):
    """A score, whose numbers the worker still checks."""

    reward: float
    components: Annotated[dict[_Name, float], msgspec.Meta(max_length=COMPONENTS_MAX)]
    log: Annotated[str, msgspec.Meta(max_length=LOG_CHARS_MAX)]


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """What the code raised or returned instead. ``spent``: the process is of no use any more."""

    why: _Line
    kind: _Line
    where: _Line
    traceback: Annotated[str, msgspec.Meta(max_length=TRACEBACK_CHARS_MAX + 1)]
    retryable: bool = False
    retry_after_s: float = 0.0
    spent: bool = False


Answer: TypeAlias = Ready | Scored | Failed


def frame(message: ScoreQuestion | Answer) -> bytes:
    """A message with its length."""
    data = msgspec.msgpack.encode(message)
    return HEAD.pack(len(data)) + data
