"""The message that explains why a process ended: the last error of its log, or its last line without one.

A service that fails drains first, so the last line of its log is ``service_stopped`` and the cause is above it. Errors
are recognised in the formats of a run's processes: lines of ``log_lines``, messages of the command line, tracebacks
that reached the interpreter, and the broker's log.
"""

import re
from collections.abc import Sequence
from pathlib import Path

# A message and the traceback before it; a traceback of 1,000 frames is longer and loses only its first ones.
TAIL_BYTES = 64 << 10
MESSAGE_CHARACTERS_MAX = 400

_LEVEL = re.compile(r"\blevel=(?:error|critical)\b")
_FIELD = r'(?:^|\s){name}=("(?:[^"\\]|\\.)*"|\S+)'
_FIELDS = [re.compile(_FIELD.format(name=name)) for name in ("error", "exception", "event")]
_COMMAND = re.compile(r"^tidegate(?: \w+)*: ")
_BROKER = re.compile(r"\[(?:ERR|FTL)\] ")
# Of ``faulthandler``: the interpreter was blocked; the frames of each thread follow, innermost first.
_BLOCKED = re.compile(r"^Timeout \(\d")
_TRACEBACK = "Traceback (most recent call last):"


def final_message(log: Path) -> str:
    """The last error of a log file, or its last line; empty without either. Shortened to a readable length."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return final_message_of(lines)


def final_message_of(lines: Sequence[str]) -> str:
    """The same of lines."""
    for index in range(len(lines) - 1, -1, -1):
        if message := _error_in(lines, index):
            return message[:MESSAGE_CHARACTERS_MAX]
    return next((line.strip()[:MESSAGE_CHARACTERS_MAX] for line in reversed(lines) if line.strip()), "")


def _error_in(lines: Sequence[str], index: int) -> str:
    """The error that the line at ``index`` reports; empty if it reports none."""
    line = lines[index]
    if _LEVEL.search(line):
        return _logged_error(line)
    if _COMMAND.match(line):
        return _COMMAND.sub("", line).strip()
    if found := _BROKER.search(line):
        return line[found.end() :].strip()
    if _BLOCKED.match(line):
        frame = next(
            (text.strip() for text in lines[index:] if text.startswith("  File ")), "an unknown line"
        )
        return f"the interpreter was blocked, so the process was ended: {frame}"
    return line.strip() if _ends_traceback(lines, index) else ""


def _logged_error(line: str) -> str:
    """The field with the most to say: an error's text, else the last line of a traceback, else the event."""
    for field in _FIELDS:
        if found := field.search(line):
            text = found.group(1)
            if text.startswith('"'):
                text = text[1:-1].replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
            return text.strip().rsplit("\n", 1)[-1]
    return line.strip()


def _ends_traceback(lines: Sequence[str], index: int) -> bool:
    """Whether a line is the exception below the frames of a traceback; frames are indented."""
    line = lines[index]
    if not line or line[0].isspace() or index == 0 or not lines[index - 1].startswith("  "):
        return False
    for above in reversed(lines[:index]):
        if above == _TRACEBACK:
            return True
        if not above.startswith(" "):
            return False
    return False
