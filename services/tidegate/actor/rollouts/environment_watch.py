"""Reports faults of environments, and ends an actor whose environments do not return from a call.

A thread that hangs cannot be ended. The watch runs in the event loop: it sees that the call makes no progress, releases
the actor's tasks to others, and fails, which ends the process; a supervisor starts the next one. A call that keeps the
interpreter to itself (C code that holds the GIL) stops the event loop as well, so the C library's own timer ends that
process, with the tracebacks of all threads in its log.
"""

import faulthandler
from collections.abc import Callable

from tidegate.actor.engines.port import EngineControl
from tidegate.catalogue import actor as statistics
from tidegate.core.errors import TidegateError
from tidegate.runtime.service import ServiceContext
from tidegate.vector_envs.calls import EnvironmentCalls
from tidegate.vector_envs.faults import FAULT_KINDS, Fault

PERIOD_S_MAX = 0.5
# Looks at a call within its timeout: it ends between the timeout and a quarter more.
LOOKS_PER_TIMEOUT = 4
# A call shorter than this is not reported: a reset that loads a level takes as long.
SHOWN_FROM_S = 2.0
# Beyond the timeout, for a loop that is late on a loaded machine and not stopped.
BLOCKED_MARGIN_S = 10.0
STDERR = 2


class EnvironmentHungError(TidegateError):
    """A call into an environment does not return."""


class _Watched:
    """One thread, and for how long its running call has been seen without progress."""

    def __init__(self, calls: EnvironmentCalls) -> None:
        self.calls = calls
        self.stuck_s = 0.0
        self._progress = calls.progress()

    def look(self, *, elapsed_s: float, asking: bool) -> None:
        """Compare with the look before, ``elapsed_s`` ago. ``asking``: no call runs, another service is asked."""
        before, self._progress = self._progress, None if asking else self.calls.progress()
        is_stuck = self._progress is not None and self._progress == before
        self.stuck_s = self.stuck_s + elapsed_s if is_stuck else 0.0

    def fault(self) -> Fault:
        """The call that does not return."""
        return self.calls.hung(seconds=self.stuck_s)


class EnvironmentWatch:
    """The loop ``environments`` of an actor of segments."""

    def __init__(
        self, context: ServiceContext, control: EngineControl, *, abandon: Callable[[], None]
    ) -> None:
        """``abandon`` releases the tasks of a call that does not return."""
        self._context = context
        self._control = control
        self._abandon = abandon
        self._timeout_s = context.settings.workload.step_timeout_s

    async def run(self) -> None:
        """Reports new faults and the age of the running call; waits for time only.

        Raises:
            EnvironmentHungError: a call takes longer than ``workload.step_timeout_s``.
        """
        context, timeout_s = self._context, self._timeout_s
        period_s = min(PERIOD_S_MAX, timeout_s / LOOKS_PER_TIMEOUT) if timeout_s else PERIOD_S_MAX
        for kind in FAULT_KINDS:  # from zero: a series that begins with a fault would show no increase
            context.stats.add(statistics.ENVIRONMENT_FAULTS.member(kind), 0.0)
        threads = [_Watched(calls) for calls in self._control.watched]
        seen_at_s = context.clock.monotonic_s()
        try:
            while True:
                if timeout_s:
                    faulthandler.dump_traceback_later(timeout_s + BLOCKED_MARGIN_S, exit=True, file=STDERR)
                is_draining = await context.drain.sleep(period_s)
                self._report_faults()
                if is_draining:
                    return
                before_s, seen_at_s = seen_at_s, context.clock.monotonic_s()
                for thread in threads:
                    # A process that was stopped for a while has looked for one period, and sees no call that hangs.
                    elapsed_s = min(seen_at_s - before_s, 2 * period_s)
                    thread.look(elapsed_s=elapsed_s, asking=self._control.asking)
                slowest = max(threads, key=lambda thread: thread.stuck_s)
                self._report_call(slowest)
                if timeout_s and slowest.stuck_s >= timeout_s:
                    raise self._give_up(slowest.fault())
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _report_faults(self) -> None:
        stats, faults = self._context.stats, self._control.faults
        for statistic, value in self._control.figures.items():
            stats.set(statistic, value)
        newest: list[Fault] = []
        while faults:
            newest.append(faults.popleft())
        if not newest:
            return
        stats.label(statistics.ENVIRONMENT_FAULT, str(newest[-1]))
        # A traceback comes once for each line that raises; of all other faults one line a period is enough.
        for fault in [each for each in newest if each.trace] or newest[-1:]:
            trace = {"exception": fault.trace} if fault.trace else {}
            self._context.log.warning("environment_fault", error=str(fault), num=len(newest), **trace)

    def _report_call(self, slowest: _Watched) -> None:
        shown = slowest.stuck_s >= SHOWN_FROM_S
        self._context.stats.set(statistics.ENVIRONMENT_CALL_S, slowest.stuck_s if shown else 0.0)
        self._context.stats.label(statistics.ENVIRONMENT_CALL, str(slowest.fault()) if shown else "")

    def _give_up(self, fault: Fault) -> EnvironmentHungError:
        self._context.stats.add(statistics.ENVIRONMENT_FAULTS.member("hung"))
        self._context.stats.label(statistics.ENVIRONMENT_FAULT, str(fault))
        self._abandon()
        return EnvironmentHungError(
            str(fault),
            why=f"workload.step_timeout_s is {self._timeout_s:g}, so this actor ends and is started again",
            fix="correct the environment, or raise the timeout above its slowest call",
        )
