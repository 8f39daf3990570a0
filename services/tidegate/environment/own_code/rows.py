"""The prompts and demonstrations of a user's task, written by a process of its own: ``rows_child`` runs the code.

The same process tells of a verifier whether it can be loaded.
"""

from collections.abc import Mapping

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.runtime.child_question import ChildEndedError, ChildTimeoutError, ask
from tidegate.runtime.own_code.process import without_platform
from tidegate.runtime.own_code.references import OwnReference

CHILD = "tidegate.environment.own_code.rows_child"


class RowsQuestion(msgspec.Struct, frozen=True):
    """What to write: the rows of ``reference`` into ``folder``.

    ``has_dataset``: the prompts are those of ``workload.dataset``, already in the folder; only demonstrations are
    written. ``bins``: only problems of these; none means all. ``loads_only``: write nothing.
    """

    reference: OwnReference
    folder: str
    seed: int
    num_demonstrations: int
    bins: tuple[str, ...] = ()
    has_dataset: bool = False
    loads_only: bool = False


class RowsWritten(msgspec.Struct, frozen=True):
    """It is done. ``is_conversation``: the task has episodes of several turns."""

    is_conversation: bool


def write_rows(question: RowsQuestion, *, environ: Mapping[str, str], deadline_s: float) -> RowsWritten:
    """Run the child and wait for it; it and all that it started are gone afterwards.

    Raises:
        ConfigError: the code cannot be loaded, fails, or has no usable prompts; or it took longer than ``deadline_s``.
    """
    written = question.reference.written
    own = without_platform(environ)
    try:
        return ask(CHILD, question, RowsWritten, deadline_s=deadline_s, environ=own)
    except ChildTimeoutError as error:
        raise ConfigError(
            f"The problems of {written} were not ready within {deadline_s:.0f} s",
            fix="let problems() return a list at once, or write the prompts into a file for workload.dataset",
        ) from error
    except ChildEndedError as error:
        raise ConfigError(
            f"{written} ended the process that asked it for its problems, with exit code {error.exit_code}",
            why=error.reason,
            fix="correct its code",
        ) from error
