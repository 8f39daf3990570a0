"""Operators who roll the learner back, under faults: I1 to I3 hold across the branches that this abandons."""

import msgspec
import pytest

from tests.simulation.reports import check
from tests.simulation.seeds import seeds
from tidegate.learner.rollback import Rollback, RollbackFile
from tidegate.sim.faults import (
    Fault,
    isolate_one,
    kill_learner,
    kill_one,
    lose_broker,
    request_rollback,
    roll_learner_back,
)
from tidegate.sim.scenario import draw_scenario
from tidegate.sim.simulation import simulate

pytestmark = pytest.mark.simulation

TICKS = 1200
ROLLBACKS: dict[Fault, int] = {
    request_rollback: 16,
    kill_learner: 2,
    roll_learner_back: 1,
    kill_one: 3,
    lose_broker: 1,
    isolate_one: 1,
}


@pytest.mark.parametrize(
    "max_lag", [1, pytest.param(0, marks=pytest.mark.extended), pytest.param(4, marks=pytest.mark.extended)]
)
@pytest.mark.parametrize("pair", seeds(1, more=3))
def test_invariants_hold_while_operators_roll_the_learner_back(
    pair: int, max_lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Rollback] = []
    num_finished = num_revived = 0
    write, remove = RollbackFile.write, RollbackFile.remove

    def note_written(file: RollbackFile, rollback: Rollback) -> None:
        written.append(rollback)
        write(file, rollback)

    def note_finished(file: RollbackFile) -> None:
        nonlocal num_finished
        num_finished += 1
        remove(file)

    monkeypatch.setattr(RollbackFile, "write", note_written)
    monkeypatch.setattr(RollbackFile, "remove", note_finished)
    for seed in (2 * pair, 2 * pair + 1):
        # So many updates that there is something to go back from.
        scenario = msgspec.structs.replace(
            draw_scenario(seed, ticks=TICKS, max_lag=max_lag),
            checkpoint_every_steps=3,
            update_s=0.1,
            rollout_s=0.1,
            num_actors=2,
            policy_delays_s=(0.0, 0.3),
        )
        report = check(simulate(scenario, faults=ROLLBACKS))
        assert report.updates > 0
        num_revived += report.revived
    assert num_revived > 0
    assert any(rollback.target.step < rollback.head.step for rollback in written)
    assert num_finished >= len(written) - 1, (
        "all but the last one, which the end of the run may have interrupted"
    )
