"""Reports of the services of a small run to admission, without the services."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tidegate.runtime.service import ServiceContext
from tidegate.runtime.stats_reports import publish_stats
from tidegate.wire.stats import ServiceStats

PERIOD_S = 0.1


class Services:
    """Actors that never wait, by instance, and a learner that waits half of its time; a test may change them."""

    def __init__(self) -> None:
        """No actor; the learner is at version 10."""
        self.actors: dict[str, dict[str, float]] = {}
        self.version = 10.0
        # None: there is no learner.
        self.learner_started_at_s: float | None = 1.0

    @asynccontextmanager
    async def reporting(self, context: ServiceContext) -> AsyncGenerator[None]:
        """Ten times a second, until the end."""
        task = asyncio.create_task(self._report(context))
        try:
            yield
        finally:
            task.cancel()

    async def _report(self, context: ServiceContext) -> None:
        loop = asyncio.get_running_loop()
        started_at_s = loop.time()
        while True:
            # By the clock: admission divides by the time between two arrivals, which a busy machine makes longer.
            for stats in self._reports(loop.time() - started_at_s):
                await publish_stats(context.bus, context.topology, stats)
            await asyncio.sleep(PERIOD_S)

    def _reports(self, at_s: float) -> list[ServiceStats]:
        learner = {
            "wait_batch_s_total": 0.5 * at_s,
            "busy_s_total": 0.5 * at_s,
            "trained_trajectories_total": 10.0 * at_s,
            "version_step": self.version,
            "lag_p95": 1.0,
        }
        labels = {"version": f"main@{self.version:.0f}"}
        return [
            *(
                [
                    ServiceStats(
                        "learner", "learner", "ready", at_s, self.learner_started_at_s, learner, labels
                    )
                ]
                if self.learner_started_at_s is not None
                else []
            ),
            ServiceStats("trajectory_store", "trajectory_store", "ready", at_s, 0.0, {}),
            ServiceStats("task_queue", "task_queue", "ready", at_s, 0.0, {"running_trajectories": 0.0}),
            *(
                ServiceStats("actor", name, "ready", at_s, 0.0, {"busy_s_total": at_s, **values})
                for name, values in self.actors.items()
            ),
        ]
