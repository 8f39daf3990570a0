"""Admission: its observations and its limits are the service's own code; statistics come from the model."""

from collections.abc import Callable

from tidegate.admission.observations import Observations
from tidegate.admission.staleness_controller import StalenessController
from tidegate.admission.state import Pause, decide, flow_of
from tidegate.catalogue import trajectory_store as store_stats
from tidegate.core.admission import Limits, capacity
from tidegate.core.errors import RecordError
from tidegate.fleet.event_queue import EventQueue
from tidegate.fleet.plan import FleetPlan
from tidegate.wire.stats import ServiceStats, check_stats

# The window of a diagnosis; limits use the newest report alone.
WINDOW_S = 10.0


class FleetAdmission:
    """Level-triggered: each tick decides from the reported statistics and requests limits from the task queue."""

    def __init__(
        self,
        plan: FleetPlan,
        events: EventQueue,
        *,
        report: Callable[[], list[ServiceStats]],
        request: Callable[[Limits], None],
    ) -> None:
        """``report`` returns the services' statistics; ``request`` is called with new limits."""
        self._plan = plan
        self._events = events
        self._report = report
        self._request = request
        self._run_file = plan.limits()
        self.alive = True
        self.skew_s = 0.0
        self._seen, self.steering = self._begin()
        self.asked: Limits | None = None
        # The input of the last decision.
        self.reported: tuple[object, ...] = ()
        self.num_changes = 0
        self.num_refused = 0
        self.capacity = 0

    def stop(self) -> None:
        """The last limits hold."""
        self.alive = False

    def restart(self) -> None:
        """A new process has no observations."""
        self.alive = True
        self._seen, self.steering = self._begin()

    def _begin(self) -> tuple[Observations, StalenessController]:
        steering = StalenessController(
            self._plan.response,
            max_lag=self._run_file.max_lag,
            batch_size=self._plan.batch_size,
            now_s=self._events.now_s + self.skew_s,
        )
        return Observations(window_s=WINDOW_S), steering

    def tick(self) -> None:
        """Observe, decide, request. Unchanged limits are requested again, which changes nothing."""
        if not self.alive:
            return
        now_s = self._events.now_s + self.skew_s
        for stats in self._report():
            try:
                check_stats(stats)
            except RecordError:
                self.num_refused += 1
            else:
                self._seen.put(stats, now_s=now_s)
        flow = flow_of(self._seen, now_s=now_s)
        if self._plan.is_steered():
            self.steering.tick(self._seen, flow, paused=False, now_s=now_s)
        action = self.steering.action()
        resident = self._seen.latest("trajectory_store", now_s=now_s)
        resident_bytes = sum(stats.values.get(store_stats.RESIDENT_BYTES, 0.0) for stats in resident)
        self.reported = (resident_bytes, action)
        decision = decide(
            self._run_file,
            Pause(),
            resident_bytes=resident_bytes,
            resident_bytes_high=self._plan.resident_bytes_high,
            group_size=self._plan.group_size,
            budget=action.max_lag,
            hold=action.pause,
        )
        if self.asked is None or not _same(decision.limits, self.asked):
            self.num_changes += 1
        self.asked = decision.limits
        self._request(decision.limits)
        self.capacity = capacity(decision.limits, flow)


def _same(limits: Limits, others: Limits) -> bool:
    """Whether two limits bound alike; the reason is only text."""
    return (limits.max_lag, limits.batch_size, limits.max_running, limits.paused) == (
        others.max_lag,
        others.batch_size,
        others.max_running,
        others.paused,
    )
