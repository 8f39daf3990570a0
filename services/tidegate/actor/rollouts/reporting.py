"""What playing episodes needs of the process that it runs in."""

from typing import Protocol

import structlog

from tidegate.runtime.clock import Clock
from tidegate.runtime.stats_board import StatsBoard


class ReportingProcess(Protocol):
    """A service's context, or a command's own: statistics, a log, a clock, and which of several processes this is."""

    @property
    def stats(self) -> StatsBoard:
        """Where to count."""
        ...

    @property
    def log(self) -> structlog.stdlib.BoundLogger:
        """Where to tell."""
        ...

    @property
    def clock(self) -> Clock:
        """The time."""
        ...

    @property
    def index(self) -> int:
        """From 0."""
        ...
