"""Rollout times: the same on every actor, and those of the slowest sample."""

import asyncio

import msgspec
import pytest

from tests.unit.actor.episodes_harness import Harness, task_of
from tests.unit.actor.support import group_task, segment_task
from tidegate.actor.engines.port import Rollouts
from tidegate.actor.rollouts.latency import rollout_time_s
from tidegate.core.distributions import Exponential, Fixed
from tidegate.core.lengths import OTHER_BIN
from tidegate.core.records import Task
from tidegate.runtime.clock import SystemClock

SLOW_HARD = {OTHER_BIN: Fixed(1.0), "hard": Fixed(9.0)}


def seeded(seed: int, *, num_samples: int = 1) -> Task:
    return msgspec.structs.replace(group_task(num_samples=num_samples), seed=seed)


def test_bin_takes_its_own_time_and_the_others_take_that_of_other() -> None:
    hard = msgspec.structs.replace(segment_task(), curriculum_bin="hard")
    assert rollout_time_s(SLOW_HARD, hard) == 9.0
    assert rollout_time_s(SLOW_HARD, segment_task()) == 1.0
    assert rollout_time_s({"hard": Fixed(9.0)}, segment_task()) == 0.0
    assert rollout_time_s({}, hard) == 0.0


def test_time_depends_on_the_seed_and_on_nothing_else() -> None:
    by_bin = {OTHER_BIN: Exponential(1.0)}
    times = [rollout_time_s(by_bin, seeded(seed)) for seed in range(100)]
    assert times == [rollout_time_s(by_bin, seeded(seed)) for seed in range(100)]
    assert len(set(times)) == 100
    assert rollout_time_s(by_bin, seeded(3), first_sample=4) != times[3]


@pytest.mark.parametrize("num_samples", [1, 8])
def test_group_takes_as_long_as_its_slowest_sample(num_samples: int) -> None:
    """The mean of the slowest of K exponentials is the K-th harmonic number."""
    by_bin = {OTHER_BIN: Exponential(1.0)}
    num = 4000
    total = sum(rollout_time_s(by_bin, seeded(seed, num_samples=num_samples)) for seed in range(num))
    harmonic = sum(1.0 / rank for rank in range(1, num_samples + 1))
    assert total / num == pytest.approx(harmonic, rel=0.05)


async def test_clock_that_is_set_back_makes_no_rollout_wait_for_it() -> None:
    harness = Harness(latency="fixed:0.1")

    class SetBack(SystemClock):
        def now_s(self) -> float:
            return super().now_s() - (3600.0 if harness.engine.requests else 0.0)

    vars(harness.context)["clock"] = SetBack()
    async with asyncio.timeout(60.0):
        assert isinstance(await harness.run(task_of()), Rollouts)
