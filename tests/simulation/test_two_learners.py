"""Two learners at once: our supervisor starts no second one, but an orchestrator that believes the first lost may."""

import asyncio
import random
import shutil

import msgspec
import pytest

from tidegate.sim.cluster import SimulatedCluster
from tidegate.sim.scenario import draw_scenario
from tidegate.sim.simulation import Report, simulate

pytestmark = pytest.mark.simulation

TICKS = 1200
CHECKPOINT_EVERY_STEPS = 3


async def start_a_second_learner_during_the_update_before_a_checkpoint(
    cluster: SimulatedCluster, _rng: random.Random
) -> None:
    """The second starts where no checkpoint is left; the first then writes one more checkpoint, and ends."""
    if cluster.second_learner.num_starts:
        return
    while cluster.oracle.num_updates < CHECKPOINT_EVERY_STEPS:
        await asyncio.sleep(0.01)
    # From the checkpoint of the first policy the second would recompute the updates, and take none of them back.
    for path in (cluster.folder / "learner" / "checkpoints").glob("0*"):
        shutil.rmtree(path)
    first, second = cluster.hosts["learner"], cluster.second_learner
    second.hold(held=False)
    while not first.num_crashes:
        await asyncio.sleep(0.01)
    second.hold(held=True)
    await second.kill()


def run() -> Report:
    scenario = msgspec.structs.replace(
        draw_scenario(1, ticks=TICKS, max_lag=4),
        update_s=1.0,
        checkpoint_every_steps=CHECKPOINT_EVERY_STEPS,
    )
    return simulate(scenario, faults={start_a_second_learner_during_the_update_before_a_checkpoint: 1})


def test_an_abandoned_branch_that_comes_back_trains_nothing_twice() -> None:
    # The first learner is restored from the checkpoint that it wrote after it had lost. By then the ledger had
    # released what its branch was trained on, and the second learner's branch may have been trained on it.
    report = run()
    assert report.revived > 0
    assert report.violations == []
