"""How old a batch is when the learner judges it, by durations alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tests.support.clocks import HeldClock
from tests.support.service_harness import make_context
from tests.support.settings import make_settings
from tidegate.core.ids import LineageName, PolicyVersion
from tidegate.core.staleness import LineageTree
from tidegate.learner.batches import BatchSource
from tidegate.learner.training_batch import TrainingBatch
from tidegate.runtime.bus import Bus

VERSION = PolicyVersion(lineage=LineageName("0-a"), step=3)


class Lease(msgspec.Struct, frozen=True):
    """An answer of the store, in which the request waited for ``waited_s``."""

    batch_id: str
    waited_s: float


class SlowSupply:
    """Calls that take ``took_s``; keeps how long each batch was held when it was judged."""

    def __init__(self, clock: HeldClock, *, took_s: float, waited_s: float) -> None:
        self._clock, self._took_s, self._waited_s = clock, took_s, waited_s
        self.held_s: list[float] = []

    async def request(self, version: PolicyVersion, **_options: Any) -> Lease:
        self._clock.now += self._took_s
        return Lease("batch", self._waited_s)

    def judge(self, leased: Lease, *, held_s: float, **_options: Any) -> TrainingBatch:
        self.held_s.append(held_s)
        return cast("TrainingBatch", leased)


async def held_s(tmp_path: Path, *, took_s: float, waited_s: float) -> float:
    clock = HeldClock()
    supply = SlowSupply(clock, took_s=took_s, waited_s=waited_s)
    settings = make_settings(tmp_path, broker_url="", writes_credentials=False)
    context = replace(make_context("learner", settings, bus=cast("Bus", None)), clock=clock)
    source = BatchSource[Any](
        context, cast("Any", None), supply, learner_id="l", lease_wait_s=1.0, uncommitted=list
    )
    await source.next(VERSION, LineageTree())
    return supply.held_s[0]


@pytest.mark.parametrize(
    ("took_s", "waited_s", "expected"),
    [
        # Of a call of 1.5 s the store waited one second for the batch: the rest may be the way of the answer.
        (1.5, 1.0, 0.5),
        (0.002, 0.0, 0.002),
        # A wait that is longer than the call, or no number, makes nothing younger than its arrival.
        (0.5, 9.0, 0.0),
        (0.5, -3.0, 0.5),
        (0.5, float("nan"), 0.5),
    ],
)
async def test_time_of_the_answer_counts_as_age(
    tmp_path: Path, took_s: float, waited_s: float, expected: float
) -> None:
    assert await held_s(tmp_path, took_s=took_s, waited_s=waited_s) == pytest.approx(expected)
