"""The loaded code of a curriculum as it is called: what it may return becomes a list of numbers, or a failure.

Used in child processes alone.
"""

import inspect
import random
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, cast

from tidegate.core.errors import ConfigError
from tidegate.core.own_weights import CurriculumBin
from tidegate.runtime.own_code.failures import message_of, sentence_of, traceback_of
from tidegate.runtime.own_code.loading import load_object, place_of
from tidegate.runtime.own_code.references import OwnReference, shown_path
from tidegate.task_queue.own_curriculum.messages import Weighed, WeightsFailed, WeightsQuestion

FORM = "def weights(bins, step, rng)"


class NoWeightsError(TypeError):
    """What the code returned are no weights; ``kind``: its type."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class OwnCurriculum:
    """What a reference names: a function, or a class that is made without arguments and has a method ``weights``."""

    def __init__(self, found: Any, reference: OwnReference) -> None:
        """``found``: what the reference names.

        Raises:
            ConfigError: it cannot be called as a curriculum.
        """
        made: Any = found() if inspect.isclass(found) else found
        function: Any = getattr(made, "weights", made)
        try:
            inspect.signature(function).bind("bins", "step", "rng")
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{reference.written} cannot be called as (bins, step, rng)",
                why=str(error),
                fix=f"define it as {FORM}, or as such a method of a class",
            ) from error
        self._function = function
        self.file, self.where = reference.source, ""
        code: Any = getattr(inspect.unwrap(function), "__code__", None)
        if code is not None:
            self.file = code.co_filename
            self.where = f"{shown_path(code.co_filename)}:{code.co_firstlineno} in {code.co_name}"

    def answer(self, question: WeightsQuestion) -> Weighed | WeightsFailed:
        """Ask the code; whatever it does becomes one of the two."""
        try:
            # Deterministic on purpose: the same state gives the same weights.
            rng = random.Random(question.seed)
            return Weighed(numbers_of(self._function(question.bins, question.step, rng), question.bins))
        except NoWeightsError as error:
            return WeightsFailed(
                error.kind[:1000], sentence_of(error.kind, str(error), where=self.where)[:1000], self.where
            )
        except (
            BaseException
        ) as error:  # the code is the user's: SystemExit and KeyboardInterrupt are mistakes too
            return failure_of(error, file=self.file, where=self.where)


def load_curriculum(reference: OwnReference) -> OwnCurriculum:
    """The curriculum of a reference.

    Raises:
        ConfigError: it names nothing that can be called as one.
        BaseException: what the code raised while it was loaded.
    """
    return OwnCurriculum(load_object(reference), reference)


def failure_of(error: BaseException, *, file: str, where: str = "") -> WeightsFailed:
    """What the code raised, with the place in its file."""
    kind, place = type(error).__name__, place_of(error, file=file) or where
    why = sentence_of(kind, message_of(error), where=place)
    return WeightsFailed(kind[:1000], why[:1000], place[:1000], traceback_of(error))


def numbers_of(value: Any, bins: tuple[CurriculumBin, ...]) -> list[float]:
    """The weights in an answer: numbers in the order of the bins, or by their names; a name left out has none.

    Raises:
        NoWeightsError: there are none.
    """
    if isinstance(value, Mapping):
        by_name = {str(name): each for name, each in cast("Mapping[Any, Any]", value).items()}
        unknown = sorted(by_name.keys() - {each.name for each in bins})
        if unknown:
            raise NoWeightsError("name", f"it returned a weight of {unknown[0][:40]!r}, which is no bin")
        return [_number(by_name.get(each.name, 0.0)) for each in bins]
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        shown = "None (a function without `return` does)" if value is None else type(value).__qualname__
        raise NoWeightsError(
            type(value).__qualname__, f"it returned {shown}, and an answer is a list of numbers, or a mapping"
        )
    # One more than there are bins, so that an endless iterator shows its length.
    return [_number(each) for each in islice(cast("Iterable[Any]", value), len(bins) + 1)]


def _number(value: Any) -> float:
    kind = type(value).__qualname__
    if isinstance(value, str | bytes | bool | None):
        raise NoWeightsError(kind, f"one of its weights is of type {kind}, and a weight is a number")
    try:
        return float(value)  # of numpy and torch too
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise NoWeightsError(
            kind, f"one of its weights is of type {kind}, and a weight is a number: {error}"
        ) from error
