import pytest

from tidegate.admission.indicators import (
    REFILL_S_MAX,
    Counted,
    IndicatorState,
    Observation,
    Valued,
    observe_indicators,
)
from tidegate.admission.observations import Observations
from tidegate.core.slo import Slo
from tidegate.core.slo_catalogue import SloConfig, SlosConfig, declared
from tidegate.wire.stats import ServiceStats

EVERYTHING = SlosConfig(**{name: SloConfig(enabled=True) for name in SlosConfig.__struct_fields__})
SLOS: dict[str, Slo] = declared(EVERYTHING, max_lag=4, max_age_s=300.0)
NOTHING = Valued(None)


def report(service: str, at_s: float, *, started_at_s: float = 0.0, **values: float) -> ServiceStats:
    named = {name.replace("__", "."): value for name, value in values.items()}
    return ServiceStats(service, service, "ready", at_s, started_at_s, named)


class Ticks:
    """Receives reports and observes, repeatedly."""

    def __init__(self) -> None:
        self.seen = Observations(window_s=10.0)
        self.memory = IndicatorState()
        self.now_s = 0.0

    def tick(
        self, *reports: ServiceStats, paused: bool = False, declared_pause: bool = False
    ) -> dict[str, Observation]:
        self.now_s += 1.0
        for stats in reports:
            self.seen.put(stats, now_s=self.now_s)
        found, self.memory = observe_indicators(
            self.seen,
            self.memory,
            SLOS,
            group_size=1,
            paused=paused,
            declared_pause=declared_pause,
            now_s=self.now_s,
        )
        return found

    def learner(self, *, started_at_s: float = 0.0, **values: float) -> dict[str, Observation]:
        return self.tick(report("learner", self.now_s, started_at_s=started_at_s, **values))


def value_of(observation: Observation) -> float | None:
    assert isinstance(observation, Valued)
    return observation.value


def test_before_anybody_reports_there_is_nothing_to_judge() -> None:
    found = Ticks().tick()
    assert set(found) == set(SLOS) - {"version_propagation_s"}
    for observation in found.values():
        assert observation in (NOTHING, Counted(good=0.0, bad=0.0, value=None))


def test_trajectories_judged_since_the_last_observation_are_counted() -> None:
    ticks = Ticks()
    ticks.learner(slo_good__lag_p95_total=500.0, slo_bad__lag_p95_total=7.0, lag_p95=3.0)
    found = ticks.learner(slo_good__lag_p95_total=590.0, slo_bad__lag_p95_total=17.0, lag_p95=4.0)
    assert found["lag_p95"] == Counted(good=90.0, bad=10.0, value=4.0)
    assert ticks.learner(slo_good__lag_p95_total=590.0, slo_bad__lag_p95_total=17.0)["lag_p95"] == Counted(
        good=0.0, bad=0.0, value=None
    )


def test_restarted_learner_counts_from_zero_and_loses_nothing() -> None:
    ticks = Ticks()
    ticks.learner(slo_good__lag_max_total=500.0, slo_bad__lag_max_total=0.0)
    ticks.learner(slo_good__lag_max_total=0.0, slo_bad__lag_max_total=0.0, started_at_s=2.0)
    found = ticks.learner(slo_good__lag_max_total=30.0, slo_bad__lag_max_total=2.0, started_at_s=2.0)
    assert found["lag_max"] == Counted(good=30.0, bad=2.0, value=None)


def test_what_an_update_measured_is_observed_once() -> None:
    ticks = Ticks()
    ticks.learner(version_step=5.0, ess=0.4)
    assert ticks.learner(version_step=5.0, ess=0.4)["effective_sample_size"] == NOTHING
    assert ticks.learner(version_step=6.0, ess=0.3)["effective_sample_size"] == Valued(0.3)
    assert ticks.learner(version_step=6.0, ess=0.3)["effective_sample_size"] == NOTHING
    # An objective that does not clip has no such number.
    assert ticks.learner(version_step=7.0, ess=0.3)["clipped_fraction"] == NOTHING


def test_idle_time_counts_from_the_first_update_on_and_not_in_a_pause() -> None:
    ticks = Ticks()
    ticks.learner(wait_batch_s_total=0.0)
    assert ticks.learner(wait_batch_s_total=1.0)["learner_idle_ratio"] == NOTHING
    found = ticks.learner(wait_batch_s_total=1.5, busy_s_total=0.5)
    assert value_of(found["learner_idle_ratio"]) == pytest.approx(0.75)
    assert ticks.tick(paused=True)["learner_idle_ratio"] == NOTHING


class IdleLearner(Ticks):
    """A learner that waits all of its time, after an update and a declared pause of a minute."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 1.0
        self.waits(declared_pause=False)
        self.waits(declared_pause=False)
        self.paused = [self.waits(declared_pause=True) for _ in range(60)]

    def waits(self, *, declared_pause: bool = False) -> float | None:
        values = {"version_step": self.step, "busy_s_total": 1.0, "wait_batch_s_total": self.now_s}
        stats = ServiceStats("learner", "learner", "ready", self.now_s, 0.0, values)
        return value_of(self.tick(stats, declared_pause=declared_pause)["learner_idle_ratio"])


def test_a_declared_pause_is_not_idleness_and_nor_is_the_time_until_the_loop_is_full_again() -> None:
    ticks = IdleLearner()
    assert ticks.paused == [None] * 60
    assert [ticks.waits() for _ in range(100)] == [None] * 100, "actors start, the first batch fills"
    ticks.step += 1.0
    assert [ticks.waits() for _ in range(10)] == [None] * 10, "the window still holds the wait"
    assert ticks.waits() == pytest.approx(1.0)


def test_a_loop_that_does_not_fill_after_a_pause_is_idleness_in_the_end() -> None:
    ticks = IdleLearner()
    ticks.now_s += REFILL_S_MAX
    ticks.waits()
    assert ticks.waits() is not None


def test_stalled_learner_is_idle_and_not_without_data() -> None:
    ticks = Ticks()
    found = ticks.learner(wait_batch_s_total=0.0, busy_s_total=0.5)
    for second in range(30):
        found = ticks.learner(wait_batch_s_total=1.0 + second, busy_s_total=0.5)
    assert value_of(found["learner_idle_ratio"]) == pytest.approx(1.0)


def test_waste_is_what_was_dropped_of_what_ended_and_retired_work_is_none() -> None:
    ticks = Ticks()

    def store(**values: float) -> Observation:
        return ticks.tick(report("trajectory_store", ticks.now_s, **values))["waste_ratio"]

    store(trained_total=100.0, dropped_total=50.0, dropped_retired_total=0.0)
    assert store(trained_total=100.0, dropped_total=50.0, dropped_retired_total=0.0) == NOTHING
    assert store(trained_total=190.0, dropped_total=60.0, dropped_retired_total=0.0) == Valued(0.1)
    found = store(trained_total=190.0, dropped_total=100.0, dropped_retired_total=40.0)
    assert found == Valued(0.1)


def test_failed_verdicts_are_a_share_of_all_and_none_without_a_verdict() -> None:
    ticks = Ticks()

    def worker(**values: float) -> Observation:
        return ticks.tick(report("environment", ticks.now_s, **values))["verifier_failure_ratio"]

    worker(verdicts_total=100.0, verifier_failures_total=50.0)
    assert worker(verdicts_total=100.0, verifier_failures_total=50.0) == NOTHING
    assert worker(verdicts_total=200.0, verifier_failures_total=70.0) == Valued(0.2)


def test_bin_whose_work_is_dropped_drifts_and_is_named() -> None:
    ticks = Ticks()
    found = ticks.tick()
    for tick in range(100):
        found = ticks.tick(
            report(
                "task_queue",
                ticks.now_s,
                decided_bin__easy_total=10.0 * tick,
                decided_bin__hard_total=10.0 * tick,
                trained_bin__easy_total=10.0 * tick,
                trained_bin__hard_total=2.0 * tick,
                **{"decided_length.4-7_total": 20.0 * tick, "trained_length.4-7_total": 12.0 * tick},
            )
        )
    observation = found["bin_drift"]
    assert isinstance(observation, Valued)
    assert observation.value is not None
    assert not SLOS["bin_drift"].holds(observation.value)
    assert observation.detail == "hard: 50% of what was decided, 17% of what was trained"
    assert found["length_drift"] == Valued(0.0)


def test_drift_has_no_verdict_before_there_are_samples() -> None:
    ticks = Ticks()
    ticks.tick(report("task_queue", 0.0, decided_bin__easy_total=0.0, trained_bin__easy_total=0.0))
    found = ticks.tick(report("task_queue", 1.0, decided_bin__easy_total=9.0, trained_bin__easy_total=9.0))
    assert found["bin_drift"] == NOTHING
