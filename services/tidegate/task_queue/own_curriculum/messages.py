"""What the task queue asks the child process of a curriculum, and what it answers."""

from typing import Annotated, TypeAlias

import msgspec

from tidegate.core.own_weights import BINS_MAX, CurriculumBin
from tidegate.runtime.own_code.failures import TRACEBACK_CHARS_MAX

CHILD = "tidegate.task_queue.own_curriculum.child"

_Line = Annotated[str, msgspec.Meta(max_length=1000)]


class WeightsQuestion(msgspec.Struct, frozen=True, array_like=True):
    """``step``: updates of the policy so far. ``seed``: of the random generator that the code is given."""

    bins: tuple[CurriculumBin, ...]
    step: int
    seed: int


class CurriculumReady(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The code is loaded; ``where`` it is defined."""

    where: _Line


class Weighed(msgspec.Struct, frozen=True, array_like=True, tag="weighed"):
    """Weights in the order of the bins, whose numbers the queue still checks."""

    weights: Annotated[list[float], msgspec.Meta(max_length=BINS_MAX + 1)]


class WeightsFailed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """What the code raised or returned instead. ``kind``: its type; ``why``: the sentence, with the place."""

    kind: _Line
    why: _Line
    where: _Line = ""
    traceback: Annotated[str, msgspec.Meta(max_length=TRACEBACK_CHARS_MAX + 1)] = ""


Answer: TypeAlias = CurriculumReady | Weighed | WeightsFailed

ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
