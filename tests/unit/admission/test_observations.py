import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.admission.observations import INSTANCES_MAX, SILENT_AFTER_S, Observations
from tidegate.wire.stats import ServiceStats


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
    seen, counter, history = Observations(window_s=window_s), 0.0, list[tuple[float, float]]()
    for tick, increase in enumerate(increases):
        counter += increase
        history.append((0.5 * tick, counter))
        seen.put(report(0.5 * tick, steps_total=counter), now_s=0.5 * tick)
    now_s = history[-1][0]
    older = [item for item in history if item[0] < now_s - window_s]
    first = older[-1] if older else history[0]
    expected = (counter - first[1]) / (now_s - first[0])
    assert seen.rate("actor", "steps_total", now_s=now_s) == pytest.approx(expected)


def test_restart_within_the_window_counts_as_no_increase_and_never_as_a_loss() -> None:
    seen = Observations(window_s=10.0)
    for at_s, started_at_s, counter in (
        (0.0, 0.0, 100.0),
        (1.0, 0.0, 110.0),
        (2.0, 1.5, 3.0),
        (3.0, 1.5, 13.0),
    ):
        seen.put(report(at_s, started_at_s=started_at_s, steps_total=counter), now_s=at_s)
    assert seen.rate("actor", "steps_total", now_s=3.0) == pytest.approx(20.0 / 3.0)
    assert seen.merged(now_s=3.0)["actor.steps_total"] == 123.0


def test_throughput_adds_up_over_instances_and_shares_of_time_are_averaged() -> None:
    seen = Observations(window_s=10.0)
    for at_s in (0.0, 1.0):
        seen.put(report(at_s, steps_total=100.0 * at_s, busy_s_total=1.0 * at_s), now_s=at_s)
        seen.put(
            report(at_s, instance="actor-1", steps_total=50.0 * at_s, busy_s_total=0.5 * at_s), now_s=at_s
        )
    assert seen.rate("actor", "steps_total", now_s=1.0) == pytest.approx(150.0)
    assert seen.ratio("actor", "busy_s_total", now_s=1.0) == pytest.approx(0.75)


def test_share_of_time_is_never_more_than_all_of_it() -> None:
    """Seconds of several slots, or of a wait that began before the window, may exceed the wall time."""
    seen = Observations(window_s=10.0)
    for at_s in (0.0, 1.0):
        seen.put(report(at_s, busy_s_total=7.0 * at_s), now_s=at_s)
    assert seen.ratio("actor", "busy_s_total", now_s=1.0) == 1.0


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


def test_flood_of_names_does_not_grow_memory() -> None:
    seen = Observations(window_s=1.0)
    for number in range(INSTANCES_MAX + 50):
        seen.put(report(0.0, instance=f"actor-{number}"), now_s=0.0)
    assert len(seen.alive("actor", now_s=0.0)) == INSTANCES_MAX
