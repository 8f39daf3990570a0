"""A running service takes over changed sections of its run file, and refuses what a run could not start with."""

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tests.support.service_harness import make_context
from tests.support.settings import make_settings
from tidegate.catalogue import process
from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.core.scaling import ScalingConfig
from tidegate.core.slo_catalogue import SloConfig, SlosConfig
from tidegate.runtime import settings_loop
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import StalenessConfig
from tidegate.runtime.live_settings import LiveSections, LiveSettings
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.settings_loop import SettingsFollower

START = LiveSections(StalenessConfig(max_lag=2))
RAISED = LiveSections(StalenessConfig(max_lag=6))


class FakeFile:
    """Answers, one a look; an error is raised by the read, None is a file that did not change."""

    def __init__(self, *answers: LiveSections | ConfigError | None) -> None:
        self._answers = list(answers)
        self._newest: LiveSections | ConfigError | None = None
        self.all_read = asyncio.Event()

    def changed(self) -> bool:
        if not self._answers:
            self.all_read.set()
            return False
        self._newest = self._answers.pop(0)
        return self._newest is not None

    def read(self) -> LiveSections:
        if isinstance(self._newest, LiveSections):
            return self._newest
        raise self._newest or ConfigError("nothing")


class FakeBus:
    """Keeps events, or loses them."""

    def __init__(self, *, reachable: bool = True) -> None:
        self.events: list[tuple[str, Any]] = []
        self._reachable = reachable

    async def event(self, kind: str, fields: Any) -> None:
        if not self._reachable:
            raise UnavailableError("the broker does not answer")
        self.events.append((kind, fields))


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Follow the answers of a file to their end."""
    monkeypatch.setattr(settings_loop, "LOOK_PERIOD_S", 0.001)

    async def run(
        *answers: LiveSections | ConfigError | None,
        bus: FakeBus | None = None,
        tells: bool = False,
        start: LiveSections = START,
    ) -> ServiceContext:
        settings = make_settings(tmp_path, broker_url="", writes_credentials=False)
        context = make_context("admission", settings, bus=cast("Bus", bus or FakeBus()))
        file = FakeFile(*answers)
        context = replace(context, live=LiveSettings(start, file))
        following = asyncio.create_task(SettingsFollower(context, tells=tells).follow())
        await asyncio.wait_for(file.all_read.wait(), timeout=60.0)
        context.drain.request()
        await asyncio.wait_for(following, timeout=60.0)
        return context

    return run


async def test_a_changed_budget_is_in_force_is_counted_and_is_told_with_what_it_was(
    follow: Callable[..., Any],
) -> None:
    bus = FakeBus()
    context = await follow(None, RAISED, bus=bus, tells=True)
    assert context.live.limits().max_lag == 6
    assert context.stats.value(process.SETTINGS_CHANGED) == 1
    assert bus.events == [("settings", {"staleness": {"max_lag": {"was": 2, "is": 6}}})]


async def test_a_refused_file_leaves_the_settings_before_it_and_the_next_one_is_taken(
    follow: Callable[..., Any],
) -> None:
    context = await follow(RAISED, ConfigError("`max_lag` is negative"))
    assert context.live.limits().max_lag == 6
    assert context.stats.value(process.SETTINGS_REFUSED) == 1
    context = await follow(ConfigError("no YAML"), RAISED)
    assert context.live.limits().max_lag == 6
    assert context.stats.value(process.SETTINGS_CHANGED) == 1


class UnreadableOnce:
    """Changed once; the first read finds no descriptor."""

    def __init__(self) -> None:
        self.num_reads = 0
        self._changes = [True]

    def changed(self) -> bool:
        return bool(self._changes) and self._changes.pop()

    def read(self) -> LiveSections:
        self.num_reads += 1
        if self.num_reads == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return RAISED


async def test_a_change_that_could_not_be_read_is_taken_over_at_a_later_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_loop, "LOOK_PERIOD_S", 0.001)
    settings = make_settings(tmp_path, broker_url="", writes_credentials=False)
    context = make_context("admission", settings, bus=cast("Bus", FakeBus()))
    context = replace(context, live=LiveSettings(START, UnreadableOnce()))
    taken = asyncio.Event()
    context.live.on_change(taken.set)
    following = asyncio.create_task(SettingsFollower(context).follow())
    waiting = asyncio.create_task(taken.wait())
    await asyncio.wait({following, waiting}, timeout=60.0, return_when=asyncio.FIRST_COMPLETED)
    context.drain.request()
    await following
    assert context.live.limits().max_lag == 6
    assert context.stats.value(process.SETTINGS_REFUSED) == 0


async def test_a_file_with_the_same_sections_changes_nothing(follow: Callable[..., Any]) -> None:
    bus = FakeBus()
    context = await follow(LiveSections(StalenessConfig(max_lag=2)), bus=bus, tells=True)
    assert context.stats.value(process.SETTINGS_CHANGED) == 0
    assert bus.events == []


async def test_a_change_holds_although_the_broker_does_not_hear_of_it(follow: Callable[..., Any]) -> None:
    context = await follow(RAISED, bus=FakeBus(reachable=False), tells=True)
    assert context.live.limits().max_lag == 6


async def test_only_admission_follows_the_scaling_of_actors(follow: Callable[..., Any]) -> None:
    wider = msgspec.structs.replace(START, scaling=ScalingConfig(max_replicas=9))
    context = await follow(wider)
    assert context.stats.value(process.SETTINGS_CHANGED) == 0
    context = await follow(wider, start=msgspec.structs.replace(START, scaling=ScalingConfig()))
    assert context.live.sections.scaling == ScalingConfig(max_replicas=9)


def test_callbacks_see_the_new_sections_and_are_called_once_a_change() -> None:
    live, seen = LiveSettings(START), list[int]()
    live.on_change(lambda: seen.append(live.staleness.max_lag))
    assert live.take(RAISED) == ["staleness"]
    assert live.take(RAISED) == []
    assert live.take(msgspec.structs.replace(RAISED, slos=SlosConfig(lag_p95=SloConfig(bound=1.0)))) == [
        "slos"
    ]
    assert seen == [6, 6]
