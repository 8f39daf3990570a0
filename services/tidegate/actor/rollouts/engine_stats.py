"""Statistics of the engine, kept current while long rollouts run."""

from collections.abc import Callable

from tidegate.actor.engines.port import EngineControl
from tidegate.catalogue import actor as statistics
from tidegate.runtime.service import ServiceContext

# Statistics are published twice a second.
PERIOD_S = 0.25


async def report_engine(context: ServiceContext, control: EngineControl, also: Callable[[], object]) -> None:
    """Update swaps, the engine's statistics, and those of ``also``, until draining."""
    stats = context.stats
    while True:
        also()
        stats.set(statistics.SWAPS, control.num_swaps)
        stats.set(statistics.SWAP_MS, 1e3 * control.swap_s)
        for statistic, value in control.figures.items():
            stats.set(statistic, value)
        if await context.drain.sleep(PERIOD_S):
            return
