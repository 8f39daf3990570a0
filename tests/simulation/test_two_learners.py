"""Two learners at once. Our supervisor starts no second one; an orchestrator that believes the first dead may."""

import asyncio
import random

import msgspec
import pytest

from tidegate.sim.cluster import Cluster
from tidegate.sim.scenario import draw_scenario
from tidegate.sim.simulation import Report, simulate

pytestmark = pytest.mark.simulation

TICKS = 1200
CHECKPOINT_EVERY_STEPS = 3


async def start_a_second_learner_during_the_update_before_a_checkpoint(
    cluster: Cluster, _rng: random.Random
) -> None:
    """The second restores what the first checkpointed last; the first then writes one more checkpoint, and ends."""
    if cluster.rival.num_starts:
        return
    while cluster.truth.num_updates < CHECKPOINT_EVERY_STEPS:
        await asyncio.sleep(0.01)
    first, second = cluster.hosts["learner"], cluster.rival
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


def test_a_branch_that_was_given_up_and_comes_back_trains_nothing_twice() -> None:
    # The first learner is restored from the checkpoint that it wrote after it had lost. By then the ledger had given
    # back what its branch was trained on, and the second learner's branch may have been trained on it.
    report = run()
    assert report.revived > 0
    assert report.violations == []
