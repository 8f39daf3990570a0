"""A user's callback as it is called: loaded from its reference, and its mistakes named once a kind."""

import inspect
from collections.abc import Callable
from typing import Any

from tidegate.cli.callbacks.events import METHODS, RunEvent
from tidegate.core.errors import ConfigError
from tidegate.runtime.own_code.failures import message_of, sentence_of, traceback_of
from tidegate.runtime.own_code.loading import load_own, place_of
from tidegate.runtime.own_code.references import OwnReference

# Kinds of failures that are told with their traceback; all others are counted.
KINDS_MAX = 64


def load_callback(reference: OwnReference) -> Any:
    """The callback of a reference: an object, or of a class one that is made without arguments.

    Raises:
        ConfigError: it cannot be loaded, or has none of the methods of a callback.
    """
    found: Any = load_own(reference)
    if inspect.isclass(found):
        try:
            found = found()
        except Exception as error:  # own code may raise anything
            raise ConfigError(
                f"{reference.written} cannot be made",
                why=sentence_of(
                    type(error).__name__, message_of(error), where=place_of(error, file=reference.source)
                ),
                fix="let it be made without arguments",
            ) from error
    check_callback(found, written=reference.written)
    return found


def check_callback(callback: Any, *, written: str) -> None:
    """Refuse what would never be called.

    Raises:
        ConfigError: it has none of the methods, or one that cannot be called with an event.
    """
    there = [name for name in METHODS if callable(getattr(callback, name, None))]
    if not there:
        raise ConfigError(
            f"{written} is no callback",
            why=f"it has none of the methods {', '.join(METHODS)}",
            fix="define one of them: docs/own_code.md",
        )
    for name in there:
        try:
            inspect.signature(getattr(callback, name)).bind("event")
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{written} cannot be called as {name}(event)",
                why=str(error),
                fix=f"define it as def {name}(self, event)",
            ) from error


def told(callback: Any, event: RunEvent) -> Any:
    """Call the method for an event, where the callback has it; returns what that returned. Raises what it raises."""
    method: Any = getattr(callback, event.method, None)
    return method(event) if callable(method) else None


class GuardedCallback:
    """Calls a callback whose mistakes stay here: each is counted, and the first of each kind told."""

    def __init__(self, callback: Any, reference: OwnReference, *, say: Callable[[str], None]) -> None:
        """``say``: writes a line."""
        self._callback = callback
        self._reference = reference
        self._say = say
        self._seen: set[tuple[str, str]] = set()
        self.num_failures = 0

    def tell(self, event: RunEvent) -> None:
        """Call it."""
        try:
            told(self._callback, event)
        except (
            BaseException
        ) as error:  # the code is the user's: SystemExit and KeyboardInterrupt are its mistakes too
            self._failed(event, error)

    def _failed(self, event: RunEvent, error: BaseException) -> None:
        self.num_failures += 1
        where = place_of(error, file=self._reference.source)
        kind = (type(error).__name__, where)
        if kind in self._seen or len(self._seen) >= KINDS_MAX:
            return
        self._seen.add(kind)
        said = sentence_of(kind[0], message_of(error), where=where)
        self._say(f"{self._reference.written}: {event.method} failed: {said}")
        self._say(traceback_of(error))
        self._say("further failures of this kind are counted, and not told")
