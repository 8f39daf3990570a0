"""All text tasks by name. Add a new task of a single turn here; conversations have another registry."""

from tidegate.core.errors import NotFoundError
from tidegate.environment.conversations.registry import CONVERSATIONS
from tidegate.environment.tasks.arithmetic import Arithmetic
from tidegate.environment.tasks.countdown import Countdown
from tidegate.environment.tasks.format_following import FormatFollowing
from tidegate.environment.tasks.long_addition import LongAddition
from tidegate.environment.tasks.port import TextTask
from tidegate.environment.tasks.sums import Sums

TASKS: dict[str, TextTask] = {
    "arithmetic": Arithmetic(),
    "countdown": Countdown(),
    "format_following": FormatFollowing(),
    "long_addition": LongAddition(),
    "sums": Sums(),
    **CONVERSATIONS,
}
# Scored in the worker itself: each answers any text within microseconds, and is tested with arbitrary text. A task
# that is not named here is scored in child processes, where a mistake in it costs its own verdict alone.
IN_PROCESS = frozenset(
    {
        *("arithmetic", "countdown", "format_following", "long_addition", "sums"),
        *("calculator", "grid", "guess_number", "python_tool"),
    }
)


def get_task(name: str) -> TextTask:
    """The task of this name.

    Raises:
        NotFoundError: there is none.
    """
    task = TASKS.get(name)
    if task is None:
        raise NotFoundError(
            f"There is no text task {name[:64]!r}", fix=f"use one of: {', '.join(sorted(TASKS))}"
        )
    return task
