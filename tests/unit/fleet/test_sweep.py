import pytest

from tidegate.core.distributions import parse_distribution
from tidegate.core.errors import ConfigError
from tidegate.fleet.modes import in_mode
from tidegate.fleet.plan import FleetPlan
from tidegate.fleet.report import Mode
from tidegate.fleet.sweep import Axis, FleetSweep, crossovers, parse_axis, run_sweep, with_setting

PLAN = FleetPlan(actors=8, rollout=parse_distribution("exp:0.040"))


def sweep(
    text: str,
    *,
    batch_size: int | None,
    max_lag: int | None = None,
    horizon_s: float = 10,
    lag_bound: float | None = None,
) -> FleetSweep:
    axis = parse_axis(text)

    def make_plan(value: int, mode: Mode) -> FleetPlan:
        return with_setting(PLAN, axis.setting, value, mode=mode, batch_size=batch_size, max_lag=max_lag)

    return run_sweep(axis, make_plan, horizon_s=horizon_s, lag_bound=lag_bound)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("actors=2..64", (2, 4, 8, 16, 32, 64)),
        ("actors=3..10", (3, 6, 10)),
        ("actors=2..5:all", (2, 3, 4, 5)),
        ("max-lag=0..8", (0, 1, 2, 4, 8)),
        ("replicas=1,3,5", (1, 3, 5)),
    ],
)
def test_axis_is_read(text: str, values: tuple[int, ...]) -> None:
    assert parse_axis(text) == Axis(text.partition("=")[0], values)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "text",
    ["", "actors", "actors=", "actors=0..4", "actors=4..2", "colour=1..2", "actors=1..4:odd", "actors=2,2"],
)
def test_invalid_axis_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_axis(text)


@pytest.mark.slow
def test_more_actors_than_a_synchronous_batch_stop_helping() -> None:
    found = sweep("actors=2..32", batch_size=8)
    assert found.sync_stops_helping_at == 8
    assert found.async_stops_helping_at is None


@pytest.mark.slow
def test_lag_of_free_actors_passes_a_bound_where_their_number_less_one_does() -> None:
    found = sweep("actors=8..13:all", batch_size=1, max_lag=1024, horizon_s=30, lag_bound=9.5)
    # The mean lag of N free actors is N - 1.
    assert found.lag_passes_bound_at == 11
    assert any("passes 9.5 at actors = 11" in sentence for sentence in crossovers(found))


def test_sweep_without_a_crossover_reports_none() -> None:
    found = sweep("actors=2,3", batch_size=1, lag_bound=100)
    assert found.lag_passes_bound_at is None
    assert any("stays at or below 100" in sentence for sentence in crossovers(found))


def test_synchronous_mode_is_no_lag_and_a_batch_of_all() -> None:
    plan = in_mode(PLAN, "sync", batch_size=None, max_lag=7)
    assert (plan.max_lag, plan.batch_size) == (0, 8)


def test_asynchronous_budget_keeps_every_actor_busy() -> None:
    assert in_mode(PLAN, "async", batch_size=None, max_lag=None).max_lag == 16
    assert in_mode(PLAN, "async", batch_size=64, max_lag=None).max_lag == 4
    assert in_mode(PLAN, "async", batch_size=None, max_lag=2).max_lag == 2
