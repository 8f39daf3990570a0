from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.admission.observations import (
    FORGOTTEN_AFTER_S,
    GONE_STATES,
    INSTANCES_MAX,
    SILENT_AFTER_S,
    SLOTS,
    Observations,
)
from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import trajectory_store as store_stats
from tidegate.wire.stats import STATISTICS_MAX, ServiceStats


def report(
    at_s: float,
    *,
    instance: str = "actor-0",
    started_at_s: float = 0.0,
    state: str = "ready",
    **values: float,
) -> ServiceStats:
    return ServiceStats(instance.split("-")[0], instance, state, at_s, started_at_s, values)


@given(
    lives=st.lists(st.lists(st.floats(0, 100), min_size=1, max_size=10), min_size=1, max_size=4),
)
def test_total_over_lives_is_all_that_was_ever_counted(lives: list[list[float]]) -> None:
    """Each life counts from zero; what it had counted when it ended stays."""
    seen, now_s, expected = Observations(window_s=5.0), 0.0, 0.0
    for number, increases in enumerate(lives):
        counter = 0.0
        for increase in increases:
            now_s += 0.5
            counter += increase
            seen.put(report(now_s, started_at_s=float(number), steps_total=counter), now_s=now_s)
        expected += counter
    assert seen.merged(now_s=now_s)["actor.steps_total"] == pytest.approx(expected)


@given(increases=st.lists(st.floats(0, 100), min_size=2, max_size=60), window_s=st.floats(1.0, 10.0))
def test_rate_is_the_increase_over_the_window(increases: list[float], window_s: float) -> None:
    """The window is whole slots: the present one and as many before it as the window has."""
    seen, counter, slot_s = Observations(window_s=window_s), 0.0, window_s / SLOTS
    for tick, increase in enumerate(increases):
        counter += increase
        seen.put(report(0.5 * tick, steps_total=counter), now_s=0.5 * tick)
    now_s = 0.5 * (len(increases) - 1)
    inside = [
        increase
        for tick, increase in enumerate(increases)
        if tick and int(0.5 * tick // slot_s) >= int(now_s // slot_s) - SLOTS
    ]
    expected = sum(inside) / (0.5 * len(inside)) if inside else 0.0
    assert seen.rate("actor", actor_stats.STEPS, now_s=now_s) == pytest.approx(expected)
    assert seen.increase("actor", actor_stats.STEPS, now_s=now_s) == pytest.approx(sum(inside))


class Reported(NamedTuple):
    """One report of the property below: after how many seconds, by whom, in which life, with which numbers."""

    elapsed_s: float
    instance: int
    life: int
    state: str
    counter: float
    gauge: float
    step: int


@given(
    reports=st.lists(
        st.builds(
            Reported,
            elapsed_s=st.sampled_from([0.0, 0.1, 0.5, 2.0, 4.0]),
            instance=st.integers(0, 4),
            life=st.integers(0, 2),
            state=st.sampled_from(["ready", "ready", "ready", "stopped"]),
            counter=st.integers(0, 1000).map(float),
            gauge=st.floats(-1e6, 1e6),
            step=st.integers(0, 5),
        ),
        max_size=80,
    )
)
def test_sums_that_are_adjusted_by_each_report_are_those_of_all_newest_reports(
    reports: list[Reported],
) -> None:
    """The slow twin keeps every instance's newest report and adds up at the end."""
    seen, now_s = Observations(window_s=10.0), 0.0
    newest: dict[int, tuple[float, Reported]] = {}
    before_lives = 0.0
    for each in reports:
        now_s += each.elapsed_s
        known = newest.get(each.instance)
        if known is not None and known[1].life != each.life:
            before_lives += known[1].counter
        newest[each.instance] = (now_s, each)
        seen.put(
            report(
                now_s,
                instance=f"actor-{each.instance}",
                started_at_s=float(each.life),
                state=each.state,
                steps_total=each.counter,
                rss_mb=each.gauge,
                weight_pull_ms=each.gauge,
                serving_step=float(each.step),
            ),
            now_s=now_s,
        )
    now_s += 1.0
    living = [
        each
        for at_s, each in newest.values()
        if now_s - at_s <= SILENT_AFTER_S and each.state not in GONE_STATES
    ]
    merged = seen.merged(now_s=now_s)
    if not reports:
        assert merged == {}
        return
    assert merged["actor.instances"] == len(living) == seen.num_alive("actor", now_s=now_s)
    assert set(seen.alive("actor", now_s=now_s)) == {f"actor-{each.instance}" for each in living}
    counted = sum(each.counter for _, each in newest.values())
    assert merged["actor.steps_total"] == pytest.approx(before_lives + counted)
    assert sum(seen.serving(now_s=now_s).values()) == len(living)
    if not living:
        assert "actor.rss_mb" not in merged
        assert seen.mean_of("actor", actor_stats.WEIGHT_PULL_MS, now_s=now_s) == 0.0
        return
    total = sum(each.gauge for each in living)
    assert merged["actor.rss_mb"] == pytest.approx(total, abs=1e-6)
    assert merged["actor.weight_pull_ms"] == pytest.approx(total / len(living), abs=1e-6)
    assert merged["actor.serving_step"] == min(each.step for each in living)


def test_gauge_is_averaged_over_the_window_and_summed_over_instances() -> None:
    seen = Observations(window_s=10.0)
    for tick in range(21):
        for instance, value in (("store-0", 4.0 * (tick % 2)), ("store-1", 10.0)):
            seen.put(report(0.5 * tick, instance=instance, available_trajectories=value), now_s=0.5 * tick)
    assert seen.gauge("store", store_stats.AVAILABLE_TRAJECTORIES, now_s=10.0) == pytest.approx(12.0, abs=0.2)


def test_pause_longer_than_silence_counts_neither_time_nor_increase_and_stays_in_the_total() -> None:
    seen = Observations(window_s=100.0)
    for at_s, counter in ((0.0, 0.0), (1.0, 10.0), (50.0, 400.0), (51.0, 410.0)):
        seen.put(report(at_s, steps_total=counter), now_s=at_s)
    assert seen.rate("actor", actor_stats.STEPS, now_s=51.0) == pytest.approx(10.0)
    assert seen.total("actor", actor_stats.STEPS) == 410.0
    assert seen.totals("actor") == {"steps_total": 410.0}


def test_clock_that_went_back_keeps_no_instance_alive_and_makes_no_negative_rate() -> None:
    seen = Observations(window_s=10.0)
    seen.put(report(100.0, instance="actor-1", steps_total=1.0), now_s=100.0)
    for at_s, counter in ((100.0, 10.0), (20.0, 20.0), (21.0, 30.0), (25.0, 40.0)):
        seen.put(report(at_s, steps_total=counter), now_s=at_s)
    assert seen.alive("actor", now_s=25.0) == ["actor-0"]
    assert seen.rate("actor", actor_stats.STEPS, now_s=25.0) == pytest.approx(10.0)


def test_versions_that_actors_serve_are_counted_by_lineage() -> None:
    seen = Observations(window_s=10.0)
    for number, label in enumerate(("0-a@5", "0-a@5", "1-b@4")):
        step = float(label.rpartition("@")[2])
        stats = ServiceStats(
            "actor", f"actor-{number}", "ready", 0.0, 0.0, {"serving_step": step}, {"serving_version": label}
        )
        seen.put(stats, now_s=0.0)
        seen.put(stats, now_s=0.1)
    assert {str(version): count for version, count in seen.serving(now_s=0.1).items()} == {
        "0-a@5": 2,
        "1-b@4": 1,
    }


def test_instance_that_reports_for_another_service_is_not_believed() -> None:
    seen = Observations(window_s=10.0)
    seen.put(report(0.0, steps_total=1.0), now_s=0.0)
    seen.put(ServiceStats("learner", "actor-0", "ready", 0.0, 0.0, {"steps_total": 9.0}), now_s=0.0)
    assert seen.total("actor", actor_stats.STEPS) == 1.0
    assert seen.total("learner", actor_stats.STEPS) is None


def test_restart_within_the_window_counts_as_no_increase_and_never_as_a_loss() -> None:
    seen = Observations(window_s=10.0)
    for at_s, started_at_s, counter in (
        (0.0, 0.0, 100.0),
        (1.0, 0.0, 110.0),
        (2.0, 1.5, 3.0),
        (3.0, 1.5, 13.0),
    ):
        seen.put(report(at_s, started_at_s=started_at_s, steps_total=counter), now_s=at_s)
    assert seen.rate("actor", actor_stats.STEPS, now_s=3.0) == pytest.approx(20.0 / 3.0)
    assert seen.merged(now_s=3.0)["actor.steps_total"] == 123.0


def test_counts_that_a_service_keeps_on_disk_are_not_counted_again_after_its_restart() -> None:
    seen = Observations(window_s=10.0)
    for life, trained in enumerate((100.0, 100.0, 104.0)):
        stats = report(
            float(life), instance="trajectory_store", started_at_s=float(life), trained_total=trained
        )
        seen.put(stats, now_s=float(life))
    assert seen.merged(now_s=2.0)["trajectory_store.trained_total"] == 104.0


def test_throughput_adds_up_over_instances_and_shares_of_time_are_averaged() -> None:
    seen = Observations(window_s=10.0)
    for at_s in (0.0, 1.0):
        seen.put(report(at_s, steps_total=100.0 * at_s, busy_s_total=1.0 * at_s), now_s=at_s)
        seen.put(
            report(at_s, instance="actor-1", steps_total=50.0 * at_s, busy_s_total=0.5 * at_s), now_s=at_s
        )
    assert seen.rate("actor", actor_stats.STEPS, now_s=1.0) == pytest.approx(150.0)
    assert seen.ratio("actor", actor_stats.BUSY_S, now_s=1.0) == pytest.approx(0.75)


def test_share_of_time_is_never_more_than_all_of_it() -> None:
    """Seconds of several slots, or of a wait that began before the window, may exceed the wall time."""
    seen = Observations(window_s=10.0)
    for at_s in (0.0, 1.0):
        seen.put(report(at_s, busy_s_total=7.0 * at_s), now_s=at_s)
    assert seen.ratio("actor", actor_stats.BUSY_S, now_s=1.0) == 1.0


def test_gauges_merge_by_what_they_are() -> None:
    seen = Observations(window_s=10.0)
    seen.put(report(0.0, rss_mb=100.0, serving_step=7.0, weight_pull_ms=4.0), now_s=0.0)
    seen.put(report(0.0, instance="actor-1", rss_mb=120.0, serving_step=5.0, weight_pull_ms=8.0), now_s=0.0)
    merged = seen.merged(now_s=0.0)
    assert merged["actor.instances"] == 2.0
    assert merged["actor.rss_mb"] == 220.0
    assert merged["actor.serving_step"] == 5.0
    assert merged["actor.weight_pull_ms"] == 6.0


def test_instance_that_fell_silent_or_ended_is_gone_and_its_counts_stay() -> None:
    seen = Observations(window_s=10.0)
    seen.put(report(0.0, steps_total=10.0, rss_mb=50.0), now_s=0.0)
    seen.put(report(0.0, instance="actor-1", steps_total=5.0, rss_mb=60.0), now_s=0.0)
    later_s = SILENT_AFTER_S + 1.0
    seen.put(report(later_s, instance="actor-1", steps_total=6.0, rss_mb=60.0), now_s=later_s)
    assert seen.alive("actor", now_s=later_s) == ["actor-1"]
    merged = seen.merged(now_s=later_s)
    assert merged["actor.steps_total"] == 16.0
    assert merged["actor.rss_mb"] == 60.0
    seen.put(report(later_s, instance="actor-1", state="stopped", steps_total=6.0), now_s=later_s)
    assert seen.alive("actor", now_s=later_s) == []


def test_flood_of_counters_does_not_grow_memory() -> None:
    seen = Observations(window_s=5.0)
    for number in range(3):
        made_up = {f"n{number}_{each}_total": 1.0 for each in range(STATISTICS_MAX - 1)}
        values = {"steps_total": float(number), **made_up}
        seen.put(ServiceStats("actor", "actor-0", "ready", 0.0, 0.0, values), now_s=0.1 * number)
    totals = seen.totals("actor")
    assert len(totals) == STATISTICS_MAX
    assert totals["steps_total"] == 2.0


def test_flood_of_names_does_not_grow_memory() -> None:
    seen = Observations(window_s=1.0)
    for number in range(INSTANCES_MAX + 50):
        seen.put(report(0.0, instance=f"actor-{number}"), now_s=0.0)
    assert len(seen.alive("actor", now_s=0.0)) == INSTANCES_MAX


def test_instances_that_ended_long_ago_give_their_places_to_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.admission.observations.INSTANCES_MAX", 2)
    seen, later_s = Observations(window_s=1.0), 2 * FORGOTTEN_AFTER_S
    seen.put(report(0.0, instance="actor-a", steps_total=3.0), now_s=0.0)
    seen.put(report(0.0, instance="actor-b", steps_total=4.0), now_s=0.0)
    seen.put(report(later_s, instance="actor-a", steps_total=5.0), now_s=later_s)
    seen.put(report(later_s, instance="actor-c", steps_total=6.0), now_s=later_s)
    seen.put(report(later_s, instance="actor-d", steps_total=7.0), now_s=later_s)
    assert seen.alive("actor", now_s=later_s) == ["actor-a", "actor-c"]
    assert seen.merged(now_s=later_s)["actor.steps_total"] == 15.0
