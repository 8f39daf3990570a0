from tidegate.admission.observations import Observations
from tidegate.admission.staleness_controller import StalenessController
from tidegate.catalogue import admission as statistics
from tidegate.core.admission import Flow
from tidegate.core.goodput import GoodputConfig
from tidegate.core.hard_sync import HardSyncConfig
from tidegate.runtime.config import ResponseConfig
from tidegate.wire.stats import ServiceStats

MAX_LAG = 6
BATCH = 4


class Platform:
    """A task queue, a learner and an actor that report, and the controller that observes them once a second."""

    def __init__(self, config: ResponseConfig) -> None:
        self.seen = Observations(window_s=10.0)
        self.steering = StalenessController(config, max_lag=MAX_LAG, batch_size=BATCH, now_s=0.0)
        self.now_s = 0.0
        self.trained = 0.0
        self.step = 0
        self.serving = 0
        self.drain = 0.0
        self.started_at_s = 1.0
        self.queue_reports = True
        self.paused = False
        self.flow = Flow(running=0, in_flight=0)

    def second(self, *, trained: float = 40.0, ess: float = 1.0) -> None:
        self.now_s += 1.0
        self.trained += trained
        self._report(
            "learner",
            {"trained_trajectories_total": self.trained, "ess": ess, "response_drain": self.drain},
            {"version": f"0-a@{self.step}"},
        )
        self._report("actor", {"serving_step": self.serving}, {"serving_version": f"0-a@{self.serving}"})
        if self.queue_reports:
            self._report("task_queue", {}, {})
        self.steering.tick(self.seen, self.flow, paused=self.paused, now_s=self.now_s)

    def _report(self, service: str, values: dict[str, float], labels: dict[str, str]) -> None:
        stats = ServiceStats(
            service=service,
            instance=f"{service}-0",
            state="ready",
            at_s=self.now_s,
            started_at_s=self.started_at_s,
            values=values,
            labels=labels,
        )
        self.seen.put(stats, now_s=self.now_s)


def test_nothing_is_changed_unless_the_run_file_asks() -> None:
    platform = Platform(ResponseConfig())
    for step in range(200):
        platform.step = step
        platform.second(ess=0.1)
        action = platform.steering.action()
        assert (action.max_lag, action.pause) == (MAX_LAG, "")


def test_a_due_sync_stops_admission_until_every_actor_has_caught_up() -> None:
    platform = Platform(ResponseConfig(hard_sync=HardSyncConfig(every_versions=5)))
    platform.second()
    platform.step = 5
    platform.second()
    assert "work in flight" in platform.steering.action().pause
    platform.second()
    assert "newest version" in platform.steering.action().pause
    platform.serving = 5
    platform.second()
    assert platform.steering.action().pause == ""
    assert platform.steering.statistics()[statistics.HARD_SYNCS] == 1


def test_a_sync_waits_for_a_task_queue_that_is_away() -> None:
    platform = Platform(ResponseConfig(hard_sync=HardSyncConfig(every_versions=5)))
    platform.second()
    platform.queue_reports = False
    for _ in range(5):
        platform.second()
    platform.step = platform.serving = 5
    for _ in range(5):
        platform.second()
    assert "work in flight" in platform.steering.action().pause
    platform.queue_reports = True
    platform.second()
    assert platform.steering.statistics()[statistics.HARD_SYNCS] == 1


def test_a_tier_that_drains_stops_admission() -> None:
    platform = Platform(ResponseConfig())
    platform.second()
    platform.drain, platform.step = 1.0, 1
    platform.second()
    assert platform.steering.action().pause


def test_the_budget_follows_goodput_down_when_lag_costs_more_than_it_buys() -> None:
    platform = Platform(ResponseConfig(goodput=GoodputConfig(enabled=True, settle_s=2.0, window_s=5.0)))
    for _ in range(1_500):
        lag = platform.steering.action().max_lag
        platform.second(trained=100.0, ess=0.7**lag)
    assert platform.steering.action().max_lag <= 1
    assert platform.steering.statistics()[statistics.BUDGET_MOVES] >= MAX_LAG - 1


def test_a_run_that_is_paused_or_trains_nothing_keeps_its_budget() -> None:
    platform = Platform(ResponseConfig(goodput=GoodputConfig(enabled=True, settle_s=2.0, window_s=5.0)))
    for _ in range(600):  # before the first batch
        platform.second(trained=0.0)
    assert platform.steering.action().max_lag == MAX_LAG
    platform.paused = True
    for second in range(600):  # work in flight still ends
        platform.second(trained=40.0 if second < 300 else 0.0)
    assert platform.steering.action().max_lag == MAX_LAG
    assert platform.steering.statistics()[statistics.BUDGET_MOVES] == 0


def test_a_learner_that_restarted_counts_no_burst() -> None:
    platform = Platform(ResponseConfig(goodput=GoodputConfig(enabled=True, settle_s=0.0, window_s=3.0)))
    for second in range(30):
        if second == 20:
            platform.started_at_s, platform.trained = 20.0, 1e9
        platform.second()
    assert platform.steering.statistics()[statistics.GOODPUT] == 40.0


def test_a_changed_budget_is_in_force_at_once_and_the_search_begins_again_at_it() -> None:
    fixed = Platform(ResponseConfig())
    fixed.steering.change_budget(2, now_s=0.0)
    assert fixed.steering.action().max_lag == 2
    searching = Platform(ResponseConfig(goodput=GoodputConfig(enabled=True)))
    searching.steering.change_budget(9, now_s=0.0)
    assert searching.steering.action().max_lag == 9
    searching.steering.change_budget(1, now_s=0.0)
    searching.second()
    assert searching.steering.action().max_lag <= 1
