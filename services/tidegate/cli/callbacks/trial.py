"""The program that loads callbacks before a run: ``python -m tidegate.cli.callbacks.trial``; it calls none."""

import msgspec

from tidegate.cli.callbacks.own_callback import load_callback
from tidegate.runtime.child_question import answer_question
from tidegate.runtime.own_code.references import OwnReference


class CallbackQuestion(msgspec.Struct, frozen=True):
    """The callback to load."""

    reference: OwnReference


def tried(question: CallbackQuestion) -> None:
    """Load it.

    Raises:
        ConfigError: it cannot be loaded, or is no callback.
    """
    load_callback(question.reference)


if __name__ == "__main__":
    answer_question(CallbackQuestion, tried)
