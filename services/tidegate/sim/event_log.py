"""The events of a run: a digest of all of them, and the last ones as text for the report of a failure."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import structlog

LINES_KEPT = 400


class EventLog:
    """Records events in order. Two runs with the same events have the same digest."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.counts: dict[str, int] = {}
        self._hash = hashlib.blake2b(digest_size=8)

    def note(self, who: str, event: str, *, detail: str = "") -> None:
        """Record an event. ``detail`` is not part of the digest: it may contain random names."""
        now_s = self.mark(f"{who} {event}")
        self.counts[event] = self.counts.get(event, 0) + 1
        self.lines.append(f"{now_s:9.3f} {who:<20} {event} {detail}".rstrip())

    def remember(self, text: str) -> None:
        """Add a line that is not part of the digest, because its time depends on the garbage collector."""
        self.lines.append(text)

    def mark(self, what: str) -> float:
        """Add an event to the digest alone; returns the time."""
        now_s = asyncio.get_running_loop().time()
        self._hash.update(f"{now_s:.6f} {what}\n".encode())
        return now_s

    def digest(self) -> str:
        """The digest of all events so far."""
        return self._hash.hexdigest()

    def logger(self, who: str, *, enabled: Callable[[], bool]) -> structlog.stdlib.BoundLogger:
        """The logger of a service; it drops what is logged while not ``enabled``."""
        return cast("structlog.stdlib.BoundLogger", _Logger(self, who, enabled))


class _Logger:
    def __init__(self, event_log: EventLog, who: str, enabled: Callable[[], bool]) -> None:
        self._chronicle = event_log
        self._who = who
        self._enabled = enabled

    def __getattr__(self, _level: str) -> Callable[..., None]:
        def log(event: str, **fields: Any) -> None:
            if not self._enabled():
                return
            detail = " ".join(f"{key}={value}" for key, value in fields.items())
            self._chronicle.note(self._who, event, detail=detail)

        return log
