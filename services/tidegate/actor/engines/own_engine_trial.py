"""The program that loads a user's engine before a run: ``python -m tidegate.actor.engines.own_engine_trial``.

It opens none, which may take a GPU and minutes.
"""

import inspect
from typing import Any

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.runtime.child_question import answer_question
from tidegate.runtime.own_code.loading import load_own
from tidegate.runtime.own_code.references import OwnReference


class EngineQuestion(msgspec.Struct, frozen=True):
    """The engine to load."""

    reference: OwnReference


def tried(question: EngineQuestion) -> None:
    """Load it.

    Raises:
        ConfigError: it cannot be loaded, or cannot be called as the opener of an engine.
    """
    found: Any = load_own(question.reference)
    try:
        inspect.signature(found).bind("setting", "control", "clock")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{question.reference.written} cannot be called as (setting, control, clock)",
            why=str(error),
            fix="define it as def open_engine(setting, control, clock): docs/engines.md",
        ) from error


if __name__ == "__main__":
    answer_question(EngineQuestion, tried)
