import math
from itertools import islice

import numpy as np
import pytest

from tidegate.core.distributions import Durations, Fixed, Histogram, check_histogram, parse_distribution
from tidegate.core.errors import ConfigError
from tidegate.core.planner.scaling import modelled_speedup
from tidegate.fleet.draws import draws
from tidegate.fleet.plan import REPLICAS_MAX, FleetPlan, check_plan, depths

NUM_DRAWS = 200_000


def sample(durations: Durations) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(list(islice(draws(durations, np.random.default_rng(1)), NUM_DRAWS)))


@pytest.mark.parametrize(
    ("text", "mean_s", "spread"),
    [("exp:0.04", 0.04, 1.0), ("lognormal:60:1", 60, 1.0), ("lognormal:2:0.5", 2, 0.5), ("fixed:3", 3, 0.0)],
)
def test_draws_have_the_configured_mean_and_spread(text: str, mean_s: float, spread: float) -> None:
    drawn = sample(parse_distribution(text))
    assert drawn.mean() == pytest.approx(mean_s, rel=0.02)
    assert drawn.std() / drawn.mean() == pytest.approx(spread, rel=0.05, abs=1e-12)


def test_histogram_is_drawn_by_its_counts() -> None:
    histogram = check_histogram(Histogram(edges_s=(0.0, 1.0, 3.0), counts=(3.0, 1.0)))
    assert histogram.mean_s == pytest.approx((3 * 0.5 + 2) / 4)
    drawn = sample(histogram)
    assert drawn.mean() == pytest.approx(histogram.mean_s, rel=0.02)
    assert (drawn < 1).mean() == pytest.approx(0.75, abs=0.01)


def test_tree_of_relays_is_filled_level_by_level() -> None:
    assert depths(7, fan_out=2) == [1, 1, 2, 2, 2, 2, 3]
    assert depths(3, fan_out=1) == [1, 2, 3]
    assert depths(3, fan_out=0) == [1, 1, 1]
    assert max(depths(10_000, fan_out=8)) == 5


def test_efficiency_of_replicas_falls_with_their_number() -> None:
    assert [modelled_speedup(count) for count in (1, 2, 4, 8)] == pytest.approx([1, 1.92, 3.52, 5.76])
    assert modelled_speedup(REPLICAS_MAX) == pytest.approx(1)


@pytest.mark.parametrize(
    "plan",
    [
        FleetPlan(actors=0, rollout=Fixed(1.0)),
        FleetPlan(actors=1, rollout=Fixed(0.0)),
        FleetPlan(actors=1, rollout=Fixed(1.0), batch_size=3, group_size=2),
        FleetPlan(actors=1, rollout=Fixed(1.0), batch_size=4, group_size=4, max_running=3),
        FleetPlan(actors=1, rollout=Fixed(1.0), replicas=REPLICAS_MAX + 1),
    ],
)
def test_plan_that_makes_no_progress_is_refused(plan: FleetPlan) -> None:
    with pytest.raises(ConfigError):
        check_plan(plan)


def test_lognormal_has_its_parameters() -> None:
    logarithms = np.log(sample(parse_distribution("lognormal:60:1")))
    assert logarithms.var() == pytest.approx(math.log(2), rel=0.02)
