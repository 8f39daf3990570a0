"""What own code raised, as texts of bounded length that can be encoded, whatever the error does when it is shown."""

import traceback

# Of a message, and of a traceback: both travel in frames and stand in logs.
MESSAGE_CHARS_MAX = 300
TRACEBACK_CHARS_MAX = 6000
TRACEBACK_FRAMES_MAX = 16


def sentence_of(kind: str, message: str, *, where: str = "") -> str:
    """Type, place and message: ``TypeError at my_task.py:12 in score: ...``."""
    place = f" at {where}" if where else ""
    line = " ".join(message.split())
    return f"{kind}{place}: {line if len(line) <= MESSAGE_CHARS_MAX else f'{line[:MESSAGE_CHARS_MAX]}…'}"


def message_of(error: BaseException) -> str:
    """What an error says."""
    try:
        return encodable(str(error)) or "no message"
    except BaseException as second:  # its __str__ is the user's code too
        return f"its __str__ raised {type(second).__name__}"


def traceback_of(error: BaseException) -> str:
    """The innermost frames, as Python shows them."""
    try:
        text = encodable("".join(traceback.format_exception(error, limit=-TRACEBACK_FRAMES_MAX)))
    except BaseException:  # formatting calls the user's code, and may run out of memory or stack as that did
        return ""
    return text if len(text) <= TRACEBACK_CHARS_MAX else f"…{text[-TRACEBACK_CHARS_MAX:]}"


def encodable(text: str) -> str:
    """A text without the halves of characters that no encoding has."""
    return text.encode("utf-8", "replace").decode()
