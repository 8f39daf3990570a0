"""Accounting of an actor's time while many episodes run; each second is counted once."""

from collections.abc import Generator
from contextlib import contextmanager

from tidegate.actor.rollouts.reporting import ReportingProcess
from tidegate.catalogue import actor as statistics


class TimeAccounting:
    """``busy_s_total``: the engine has work, or rollouts wait for their time (``wait_latency_s_total`` when only that).

    ``wait_session_s_total``: all running episodes wait for their environments, and the engine is idle.
    """

    def __init__(self, process: ReportingProcess) -> None:
        self._process = process
        self._num_writing = 0
        self._num_answering = 0
        self._num_waiting = 0
        self._since_s = process.clock.monotonic_s()

    def update(self) -> None:
        """Count the time since the last call."""
        stats = self._process.stats
        now_s = self._process.clock.monotonic_s()
        passed_s, self._since_s = now_s - self._since_s, now_s
        if self._num_writing:
            stats.add(statistics.BUSY_S, passed_s)
        elif self._num_answering:
            stats.add(statistics.WAIT_SESSION_S, passed_s)
        elif self._num_waiting:
            stats.add(statistics.BUSY_S, passed_s)
            stats.add(statistics.WAIT_LATENCY_S, passed_s)

    @contextmanager
    def writing(self) -> Generator[None]:
        """Context in which an episode is with the engine."""
        self.update()
        self._num_writing += 1
        try:
            yield
        finally:
            self.update()
            self._num_writing -= 1

    @contextmanager
    def answering(self) -> Generator[None]:
        """Context in which an episode is with its environment, or waits for one."""
        self.update()
        self._num_answering += 1
        try:
            yield
        finally:
            self.update()
            self._num_answering -= 1

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Context in which a task waits for its time to pass, which counts as work."""
        self.update()
        self._num_waiting += 1
        try:
            yield
        finally:
            self.update()
            self._num_waiting -= 1
