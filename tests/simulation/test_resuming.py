"""Token rollouts under seeded faults: killed actors leave them unfinished, others resume them, all invariants hold."""

import random
from typing import Any

import pytest

from tests.simulation.reports import check
from tests.simulation.scenarios import groups_of_four
from tidegate.actor.rollouts import episode_runner
from tidegate.actor.rollouts.resumption import ResumedGroup, resume
from tidegate.sim.cluster import SimulatedCluster
from tidegate.sim.scenario import Scenario
from tidegate.sim.simulation import simulate

pytestmark = [
    pytest.mark.simulation,
    # Coroutines of killed processes are closed at the end of the run, after their loop is gone.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def tokens(seed: int, *, max_lag: int) -> Scenario:
    """Each rollout is long enough to be interrupted."""
    return groups_of_four(seed, max_lag=max_lag, rollout_s=2.0, writes_tokens=True)


@pytest.mark.parametrize("max_lag", [0, 4])
@pytest.mark.parametrize("seed", range(2))
def test_invariants_hold_under_faults_with_engines_that_write_tokens(seed: int, max_lag: int) -> None:
    report = check(simulate(tokens(seed, max_lag=max_lag)))
    assert report.faults > 0
    assert report.updates > 0
    assert max(report.trained_by_lag) <= max_lag


async def interrupt_an_actor(cluster: SimulatedCluster, rng: random.Random) -> None:
    """``kill -9`` of an actor, which is restarted."""
    actor = rng.choice(cluster.actors)
    await actor.kill()
    actor.start()


def test_rollouts_of_killed_actors_are_resumed_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token is compared with the policy that wrote it, on whichever actor (I5)."""
    resumed: list[ResumedGroup] = []

    def noted(*arguments: Any, **keywords: Any) -> ResumedGroup:
        resumed.append(resume(*arguments, **keywords))
        return resumed[-1]

    monkeypatch.setattr(episode_runner, "resume", noted)
    report = check(simulate(tokens(3, max_lag=16), faults={interrupt_an_actor: 1}))
    assert report.faults > 3
    assert sum(each.tokens_resumed for each in resumed) > 0
    assert any(trained > 0 for trained in report.trained_by_lag.values())
