import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.admission.kubernetes.objects import Meta, Pod
from tidegate.admission.kubernetes.pod_costs import COST, IDLE, OURS, USELESS, cost_of, rank
from tidegate.wire.stats import ServiceStats


def actor(state: str = "ready", **values: float) -> ServiceStats:
    return ServiceStats("actor", "a", state, 0.0, 0.0, dict(values))


@pytest.mark.parametrize(
    ("values", "cost"),
    [
        ({"serving_step": 8.0}, IDLE),
        ({"serving_step": 8.0, "busy_tasks": 1.0}, 10),
        ({"serving_step": 8.0, "busy_tasks": 1.0, "work_invested_s": 5.0}, 20),
        ({"serving_step": 8.0, "busy_tasks": 1.0, "work_invested_s": 29.9}, 20),
        ({"serving_step": 8.0, "busy_tasks": 1.0, "work_invested_s": 30.0}, 30),
        ({"serving_step": 8.0, "busy_tasks": 1.0, "work_invested_s": 1e9}, 40),
        ({"serving_step": 7.0, "busy_tasks": 1.0, "work_invested_s": 1e9}, USELESS),
        ({"busy_tasks": 1.0, "work_invested_s": 1e9}, USELESS),
    ],
)
def test_cost_is_the_bucket_of_the_work_held_by_who_serves_inside_the_budget(
    values: dict[str, float], cost: int
) -> None:
    assert cost_of(actor("ready", **values), head_step=10.0, max_lag=2) == cost


@pytest.mark.parametrize("state", ["starting", "draining", "stopped"])
def test_an_actor_that_does_not_work_goes_first(state: str) -> None:
    assert cost_of(actor(state, serving_step=10.0), head_step=10.0, max_lag=2) == USELESS
    assert cost_of(None, head_step=10.0, max_lag=2) == USELESS


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e6))
def test_more_work_is_never_ranked_before_less(first_s: float, second_s: float) -> None:
    low, high = sorted((first_s, second_s))
    costs = [
        cost_of(actor(serving_step=0.0, busy_tasks=1.0, work_invested_s=s), head_step=0.0, max_lag=0)
        for s in (low, high)
    ]
    assert IDLE < costs[0] <= costs[1]


def pod(name: str, current: str | None = None, ours: str | None = None, *, going: bool = False) -> Pod:
    annotations = {key: text for key, text in ((COST, current), (OURS, ours)) if text is not None}
    return Pod(
        Meta(name=name, annotations=annotations, deletion_timestamp="2026-01-01T00:00:00Z" if going else "")
    )


def ranked(*pods: Pod, patched_at_s: dict[str, float] | None = None) -> tuple[list[str], tuple[str, ...]]:
    found = rank(pods, {}, patched_at_s or {}, head_step=0.0, max_lag=1, period_s=60.0, now_s=100.0)
    return [patch.pod for patch in found.patches], found.foreign


def test_an_unchanged_cost_is_not_written_again() -> None:
    assert ranked(pod("a", "-100", "-100")) == ([], ())
    assert ranked(pod("a", "10", "10")) == (["a"], ())
    assert ranked(pod("a")) == (["a"], ())


def test_a_cost_of_another_writer_is_left_alone() -> None:
    assert ranked(pod("a", "10"), pod("b", "11", "10")) == ([], ("a", "b"))


def test_a_pod_is_patched_once_a_period_and_not_when_it_is_going() -> None:
    assert ranked(pod("a"), patched_at_s={"a": 41.0}) == ([], ())
    assert ranked(pod("a"), patched_at_s={"a": 40.0}) == (["a"], ())
    assert ranked(pod("a", going=True)) == ([], ())
