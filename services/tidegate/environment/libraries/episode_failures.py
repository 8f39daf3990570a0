"""What a worker says of an episode that third-party code ended by raising, and when it is itself to end."""

import asyncio
import traceback

from tidegate.core.errors import TidegateError

MESSAGE_CHARS_MAX = 400


def line_of(error: BaseException) -> str:
    """An error and the line that raised it; of one of ours its sentence."""
    if isinstance(error, TidegateError):
        return " ".join(str(error).split())[:MESSAGE_CHARS_MAX]
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}: {' '.join(str(error).split())[:MESSAGE_CHARS_MAX]}"


def is_cancelled() -> bool:
    """Whether this task is to end: a cancellation that an environment raises by itself ends its episode alone."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
