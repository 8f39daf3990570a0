"""What every monitor of a run does: reads its output, feeds its input, measures it, and names the limit it reached."""

import os
import select
import signal
import time
from collections.abc import Callable
from typing import Protocol

# Between two samples a program can use this much more CPU, and grow by what it can write into memory meanwhile.
_SAMPLE_PERIOD_S = 0.02
_READ_BYTES = 1 << 16


class Output:
    """The output of one stream: all bytes counted, the first part kept."""

    def __init__(self, descriptor: int, *, kept_max: int) -> None:
        """Read from ``descriptor`` and keep ``kept_max`` bytes."""
        self.descriptor = descriptor
        self.kept = bytearray()
        self.num_bytes = 0
        self._kept_max = kept_max
        os.set_blocking(descriptor, False)

    @property
    def over(self) -> bool:
        """Whether more was read than is kept."""
        return self.num_bytes > self._kept_max

    def read(self) -> bool:
        """Read what is available; False at the end of the stream."""
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return True
        self.kept += data[: max(0, self._kept_max - self.num_bytes)]
        self.num_bytes += len(data)
        return bool(data)

    def drain(self) -> None:
        """Read the rest of a stream whose writers are dead, at most as much as is kept."""
        while not self.over and self.read():
            pass


class Supervised(Protocol):
    """A run in progress, as its monitor knows it.

    ``ended_fd`` becomes readable when the program may have ended. ``cpu_s``: CPU seconds at the last sample.
    """

    ended_fd: int
    outputs: tuple[Output, Output]
    cpu_s: float

    def has_ended(self) -> bool:
        """Whether it ended by itself, asked when ``ended_fd`` is readable."""
        ...

    def spent(self, limits: dict[str, float]) -> str | None:
        """The limit that all processes together have reached, if any."""
        ...

    def end(self) -> None:
        """Kill all that is left of the run, and wait until it is dead."""
        ...


def supervise(
    run: Supervised, limits: dict[str, float], feed: tuple[bytes, int], *, deadline_s: float, worker_fd: int
) -> str | None:
    """Read, feed and measure until the run ended by itself (None) or a limit is reached (its name).

    ``feed``: bytes for the program's stdin, and where to write them. ``worker_fd`` becomes readable once the worker is
    gone: then the run and this process end.
    """
    poll = select.poll()
    poll.register(run.ended_fd, select.POLLIN)
    poll.register(worker_fd, select.POLLIN)
    handlers: dict[int, Callable[[], bool]] = {output.descriptor: output.read for output in run.outputs}
    for descriptor in handlers:
        poll.register(descriptor, select.POLLIN)
    handlers[feed[1]] = feeder(*feed)
    poll.register(feed[1], select.POLLOUT)
    sample_at_s = time.monotonic() + _SAMPLE_PERIOD_S
    while True:
        now_s = time.monotonic()
        if now_s >= deadline_s:
            return "wall"
        if now_s >= sample_at_s:
            limit = run.spent(limits)
            if limit is not None:
                return limit
            sample_at_s = time.monotonic() + _SAMPLE_PERIOD_S
        ready = dict(poll.poll(max(0.0, min(deadline_s, sample_at_s) - now_s) * 1000))
        if worker_fd in ready:
            run.end()
            os._exit(1)  # the worker abandoned the run
        for descriptor in ready.keys() & handlers.keys():
            if not handlers[descriptor]():
                poll.unregister(descriptor)
                del handlers[descriptor]
        if any(output.over for output in run.outputs):
            return "output"
        if run.ended_fd in ready and run.has_ended():
            return None


def feeder(data: bytes, descriptor: int) -> Callable[[], bool]:
    """Writes ``data`` as the program reads it; the call returns whether some is left."""
    os.set_blocking(descriptor, False)
    left = memoryview(data)

    def feed() -> bool:
        nonlocal left
        try:
            left = left[os.write(descriptor, left[:_READ_BYTES]) :] if left else left
        except BlockingIOError:
            return True
        except BrokenPipeError:
            left = left[:0]
        if left:
            return True
        os.close(descriptor)
        return False

    return feed


def limit_of(run: Supervised, limits: dict[str, float], status: int) -> str | None:
    """The limit that a run exceeded between the last sample and its end."""
    if any(output.over for output in run.outputs):
        return "output"
    return "cpu" if status == -signal.SIGKILL and run.cpu_s >= limits["cpu_s"] else None
