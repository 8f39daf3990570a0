"""Cutting slow rollouts and stopping groups early under seeded faults: every invariant holds, nothing is lost."""

import msgspec
import pytest

from tests.simulation.reports import check
from tests.simulation.scenarios import groups_of_four
from tests.simulation.seeds import seeds
from tidegate.actor.rollouts import deadlines
from tidegate.core.lengths import SurvivalCurve
from tidegate.core.long_tail import Continue, Cut, RolloutUnderWay, decide_rollout
from tidegate.core.staleness import StalenessLimits
from tidegate.runtime.config import LongTailConfig
from tidegate.sim.scenario import Scenario
from tidegate.sim.simulation import simulate

pytestmark = pytest.mark.simulation


def groups(seed: int, *, long_tail: LongTailConfig, max_lag: int) -> Scenario:
    """Rollouts of very unlike lengths."""
    return groups_of_four(seed, max_lag=max_lag, latency="lognormal:0.5:2", long_tail=long_tail)


@pytest.mark.parametrize("seed", seeds(1, more=3))
def test_rollouts_are_cut_under_faults_and_every_one_ends_exactly_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Continue | Cut] = []

    def noted(
        rollout: RolloutUnderWay,
        curve: SurvivalCurve,
        *,
        limits: StalenessLimits,
        versions_per_s: float,
        finish_chance_min: float,
    ) -> Continue | Cut:
        made.append(
            decide_rollout(
                rollout,
                curve,
                limits=limits,
                versions_per_s=versions_per_s,
                finish_chance_min=finish_chance_min,
            )
        )
        return made[-1]

    monkeypatch.setattr(deadlines, "decide_rollout", noted)
    cutting = LongTailConfig(policy="cut", finish_chance_min=0.3)
    report = check(simulate(groups(seed, long_tail=cutting, max_lag=1)))
    assert any(isinstance(decision, Cut) for decision in made)
    assert report.dropped["stale"] % 4 == 0, "a group ends whole"
    assert report.updates > 0
    assert max(report.trained_by_lag) <= 1


@pytest.mark.parametrize("seed", seeds(1, more=3))
def test_groups_are_stopped_early_under_faults_and_every_sample_ends_exactly_once(seed: int) -> None:
    early_stop = LongTailConfig(early_stop_after=2)
    report = check(simulate(groups(seed, long_tail=early_stop, max_lag=4)))
    assert report.updates > 0
    assert report.dropped.get("settled", 0) > 0
    assert report.dropped["settled"] % 4 == 0, "a group ends whole"


def test_in_synchronous_training_nothing_is_cut_and_early_stops_do_not_block_it() -> None:
    both = LongTailConfig(policy="cut", finish_chance_min=0.5, early_stop_after=2)
    quiet = msgspec.structs.replace(groups(1, long_tail=both, max_lag=0), faults=False)
    report = check(simulate(quiet))
    assert report.updates > 10
    assert set(report.dropped) <= {"settled"}
