"""Wall clocks that are an hour wrong, on any host: promises that name seconds hold by one clock."""

import msgspec
import pytest

from tests.simulation.reports import check
from tests.simulation.seeds import seeds
from tidegate.sim.faults import Fault, kill_learner, kill_one, set_clock_wrong, slow_learner
from tidegate.sim.scenario import draw_scenario
from tidegate.sim.simulation import simulate

pytestmark = pytest.mark.simulation

TICKS = 1600
CLOCKS: dict[Fault, int] = {set_clock_wrong: 8, kill_learner: 1, kill_one: 2, slow_learner: 4}


@pytest.mark.parametrize("seed", seeds(1, more=23))
def test_budget_of_age_holds_and_nothing_is_lost_when_a_clock_is_an_hour_wrong(seed: int) -> None:
    scenario = draw_scenario(seed, ticks=TICKS, max_lag=16)
    # Little age and much work in flight: what waits for a slow learner becomes too old.
    tight = msgspec.structs.replace(
        scenario, max_age_s=2.5, max_running=8 * scenario.batch_size, max_resident=100
    )
    report = check(simulate(tight, faults=CLOCKS))
    assert report.updates > 0
