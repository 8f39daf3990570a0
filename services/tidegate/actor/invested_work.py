"""How much unfinished work an actor holds: what is lost, or repeated elsewhere, if it stops now.

Produces two statistics at the pace of the others; waits for time only. Admission ranks actors by it.
"""

from tidegate.actor.in_flight import InFlightTasks
from tidegate.catalogue import actor as statistics
from tidegate.runtime.service import ServiceContext


async def report_investment(context: ServiceContext, in_flight: InFlightTasks) -> None:
    """``busy_tasks``: tasks that were started and not answered; ``work_invested_s``: seconds since each, in sum."""
    while True:
        busy, seconds = invested(in_flight, now_s=context.clock.now_s())
        context.stats.set(statistics.BUSY_TASKS, float(busy))
        context.stats.set(statistics.WORK_INVESTED_S, seconds)
        if await context.drain.sleep(context.settings.telemetry.stats_period_s):
            return


def invested(in_flight: InFlightTasks, *, now_s: float) -> tuple[int, float]:
    """Tasks that were started, and the seconds since they were taken, in sum; a clock set back counts as none."""
    waiting = {id(leased) for leased in in_flight.waiting}
    started = [leased for leased in in_flight.unanswered() if id(leased) not in waiting]
    return len(started), sum(max(0.0, now_s - leased.taken_at_s) for leased in started)
