"""Each second of an actor is counted once, by its use."""

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidegate.actor.rollouts.time_accounting import TimeAccounting
from tidegate.catalogue import actor as statistics
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.stats_board import StatsBoard


class Time:
    """A clock set by the test."""

    def __init__(self) -> None:
        self.at_s = 50.0

    def monotonic_s(self) -> float:
        return self.at_s


@pytest.mark.parametrize(
    ("kinds", "counted"),
    [
        ([], {}),
        (["writing"], {"busy_s_total": 3.0}),
        (["writing", "writing", "answering", "waiting"], {"busy_s_total": 3.0}),
        (["answering", "answering", "waiting"], {"wait_session_s_total": 3.0}),
        (["waiting", "waiting"], {"busy_s_total": 3.0, "wait_latency_s_total": 3.0}),
    ],
)
def test_time_is_counted_by_its_bottleneck(kinds: list[str], counted: dict[str, float]) -> None:
    time, stats = Time(), StatsBoard(service="actor", instance="actor-0", started_at_s=0.0)
    time_accounting = TimeAccounting(
        cast("ServiceContext", cast("Any", SimpleNamespace(stats=stats, clock=time)))
    )
    time.at_s += 7.0
    with ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(getattr(time_accounting, kind)())
        time.at_s += 1.0
        time_accounting.update()
        time.at_s += 2.0
    time.at_s += 11.0
    time_accounting.update()
    names = (statistics.BUSY_S, statistics.WAIT_SESSION_S, statistics.WAIT_LATENCY_S)
    assert {name: stats.value(name) for name in names if stats.value(name)} == counted
