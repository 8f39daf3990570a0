"""What a verifier answered: a score, or a failure that says where. Anything that it may return becomes one of the two.

Without numpy and without IO: the child processes of own code import it, and start within a tenth of a second.
"""

import inspect
import numbers
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, TypeAlias, cast

import msgspec

from tidegate.environment.tasks.port import Score
from tidegate.runtime.own_code.failures import encodable, message_of, sentence_of, traceback_of
from tidegate.runtime.own_code.loading import place_of

# A verifier's log is kept with the record; this bounds what it may add to a message.
LOG_CHARS_MAX = 2000
COMPONENTS_MAX = 64
COMPONENT_CHARS_MAX = 128


class VerifierFailed(msgspec.Struct, frozen=True):
    """A verifier raised, overran its deadline, ended its process, or gave a reward that is no number.

    ``why``: the sentence. ``kind``: the type of what was raised or returned, or ``deadline``, ``ended``, ``range``.
    ``where``: file, line and function in the verifier's code; ``traceback``: of what was raised. Both may be empty.
    ``retryable``: asking again can help, ``retry_after_s`` (seconds) from now at the earliest.
    """

    why: str
    kind: str = ""
    where: str = ""
    traceback: str = ""
    retryable: bool = False
    retry_after_s: float = 0.0


Judgement: TypeAlias = Score | VerifierFailed


def why_failed(judgement: Judgement) -> str:
    """The sentence of a failure; empty for a score."""
    return judgement.why if isinstance(judgement, VerifierFailed) else ""


class NoScoreError(TypeError):
    """What a verifier returned is neither a number nor a ``Score``; ``kind`` is its type."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def score_of(value: object) -> Score:
    """The score that a verifier returned: a ``Score``, or a number of Python, numpy or torch.

    Raises:
        NoScoreError: it is neither, or a part of the score is no number.
    """
    if not isinstance(value, Score):
        return Score(_number_of(value, "it returned"), {}, "")
    if (
        type(value.reward) is float
        and type(value.log) is str
        and all(map(_is_float, value.components.items()))
    ):
        return value  # what the tasks of this package return: no copy
    parts = cast("object", value.components)
    if not isinstance(parts, Mapping):
        raise NoScoreError(_type_of(parts), f"its components are {_type_of(parts)} instead of a dictionary")
    named = list(cast("Mapping[object, object]", parts).items())
    if len(named) > COMPONENTS_MAX:
        raise NoScoreError("Score", f"it has {len(named)} components; at most {COMPONENTS_MAX} are kept")
    return Score(
        _number_of(value.reward, "its reward is"),
        {
            _text_of(name)[:COMPONENT_CHARS_MAX]: _number_of(part, f"its component {name!r:.40} is")
            for name, part in named
        },
        _text_of(value.log)[:LOG_CHARS_MAX],
    )


def failed_at(
    kind: str, message: str, *, where: str = "", trace: str = "", retryable: bool = False
) -> VerifierFailed:
    """A failure whose sentence names type and place: ``TypeError at my_task.py:12 in score: ...``."""
    return VerifierFailed(
        sentence_of(kind, message, where=where), kind=kind, where=where, traceback=trace, retryable=retryable
    )


def failure_of_exception(error: BaseException, *, file: str = "", where: str = "") -> VerifierFailed:
    """What a verifier raised. ``file``: of its code, whose innermost frame is named; ``where``: without any frame."""
    return failed_at(
        type(error).__name__,
        message_of(error),
        where=place_of(error, file=file) or where,
        trace=traceback_of(error),
    )


def _number_of(value: object, what: str) -> float:
    """A number of Python, or of numpy and torch without dimensions, as a float.

    Raises:
        NoScoreError: it is none, or too large for a float.
    """
    kind = _type_of(value)
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and not isinstance(value, int | float):
        if shape != ():
            size = tuple(cast("tuple[Any, ...]", shape))
            raise NoScoreError(
                kind, f"{what} {kind} of shape {size}, and a reward is one number: use .mean() or .item()"
            )
        value = cast("Any", value).item()
    if inspect.iscoroutine(value):
        value.close()
        raise NoScoreError(kind, f"{what} a coroutine: define the function by `def` instead of `async def`")
    if not isinstance(value, numbers.Real | Decimal):
        raise NoScoreError(
            kind, f"{what} {_shown(value, kind)}, and a reward is a number: return an int or a float"
        )
    try:
        return float(value)
    except (OverflowError, ValueError) as error:
        raise NoScoreError(kind, f"{what} a number that no float holds: {error}") from error


def _is_float(part: tuple[object, object]) -> bool:
    return type(part[1]) is float and type(part[0]) is str


def _type_of(value: object) -> str:
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"[:COMPONENT_CHARS_MAX]


def _shown(value: object, kind: str) -> str:
    if value is None:
        return "None (a function without `return` does)"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    return f"a value of type {kind}"


def _text_of(value: object) -> str:
    """A text that can be encoded; of anything else its ``str``."""
    return encodable(value if isinstance(value, str) else str(value))
