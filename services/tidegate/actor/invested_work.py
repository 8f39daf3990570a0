"""The unfinished work of an actor: lost, or repeated on another actor, if it stops now.

Produces two statistics at the period of the others; waits for time only. Admission ranks actors by it.
"""

from tidegate.actor.in_flight import InFlightTasks
from tidegate.catalogue import actor as statistics
from tidegate.runtime.service import ServiceContext


async def report_investment(context: ServiceContext, in_flight: InFlightTasks) -> None:
    """``busy_tasks``: tasks started and not answered; ``work_invested_s``: sum of the seconds since their start."""
    while True:
        busy, seconds = invested(in_flight, now_s=context.clock.now_s())
        context.stats.set(statistics.BUSY_TASKS, float(busy))
        context.stats.set(statistics.WORK_INVESTED_S, seconds)
        if await context.drain.sleep(context.settings.telemetry.stats_period_s):
            return


def invested(in_flight: InFlightTasks, *, now_s: float) -> tuple[int, float]:
    """Started tasks, and the sum of the seconds since they were taken; a clock set back counts as 0."""
    waiting = {id(leased) for leased in in_flight.waiting}
    started = [leased for leased in in_flight.unanswered() if id(leased) not in waiting]
    return len(started), sum(max(0.0, now_s - leased.taken_at_s) for leased in started)
