"""Calls into environments that do not return: seen in time, named, and the actor fails with the cause."""

import faulthandler
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidegate.actor.engines.port import EngineControl
from tidegate.actor.rollouts.environment_watch import EnvironmentHungError, EnvironmentWatch
from tidegate.catalogue import actor as statistics
from tidegate.runtime.config import WorkloadConfig
from tidegate.runtime.service import ServiceContext
from tidegate.runtime.stats_board import StatsBoard
from tidegate.vector_envs.calls import EnvironmentCalls
from tidegate.vector_envs.faults import Fault, FaultLog
from tidegate.vector_envs.guarded_port import Guarded

HUNG = statistics.ENVIRONMENT_FAULTS.member("hung")


class Harness:
    """A watch whose time passes in its own sleeps; ``script`` gets the number of each sleep."""

    def __init__(
        self, script: Callable[[int], None], *, timeout_s: float = 30.0, sleeps: int = 1_000
    ) -> None:
        self.now_s = 1_000.0
        self.sleep_takes_s = 0.0
        self.stats = StatsBoard(service="actor", instance="actor-0", started_at_s=0.0)
        self.control = EngineControl()
        self.calls = EnvironmentCalls("My-v0")
        self.control.watched.append(self.calls)
        self.guarded = SimpleNamespace(num_calls=1, call="step", copy=3)
        self.logged: list[dict[str, Any]] = []
        self.num_sleeps = 0
        self.num_abandoned = 0
        self._script = script
        self._sleeps = sleeps
        workload = WorkloadConfig(kind="segments", env="My-v0", step_timeout_s=timeout_s)
        context = SimpleNamespace(
            settings=SimpleNamespace(workload=workload),
            clock=SimpleNamespace(monotonic_s=lambda: self.now_s),
            stats=self.stats,
            drain=SimpleNamespace(sleep=self._sleep),
            log=SimpleNamespace(warning=self._warn),
        )
        self.watch = EnvironmentWatch(
            cast("ServiceContext", cast("Any", context)), self.control, abandon=self._abandon
        )

    def _warn(self, event: str, **fields: object) -> None:
        self.logged.append({"event": event, **fields})

    def step(self) -> None:
        """The environments are in a call of a segment."""
        self.calls.use(cast("Guarded", cast("Any", self.guarded)))
        self.calls.begin(lambda: "step 17 of the segment of task t1")

    async def _sleep(self, seconds: float) -> bool:
        self.now_s += max(seconds, self.sleep_takes_s)
        self.num_sleeps += 1
        self._script(self.num_sleeps)
        return self.num_sleeps >= self._sleeps

    def _log(self, _event: str, **fields: Any) -> None:
        self.logged.append(fields)

    def _abandon(self) -> None:
        self.num_abandoned += 1

    def label(self, text: str) -> str:
        return self.stats.snapshot(at_s=0.0).labels.get(text, "")


async def test_call_that_does_not_return_fails_the_actor_with_its_place() -> None:
    harness = Harness(lambda _: None)
    harness.step()
    started_s = harness.now_s
    with pytest.raises(EnvironmentHungError) as found:
        await harness.watch.run()
    assert 30.0 <= harness.now_s - started_s < 32.0
    assert str(found.value).startswith(
        "Copy 3 of 'My-v0' does not return from step: 30 s, in step 17 of the segment of task t1. "
        "workload.step_timeout_s is 30"
    )
    assert harness.num_abandoned == 1
    assert harness.stats.value(HUNG) == 1
    assert "does not return" in harness.label(statistics.ENVIRONMENT_FAULT)


async def test_environment_that_is_never_made_is_named_as_such() -> None:
    harness = Harness(lambda _: None, timeout_s=5.0)
    harness.calls.begin(lambda: "the first reset (task t1)")
    with pytest.raises(
        EnvironmentHungError, match="Environment 'My-v0' does not return from make: 5 s, in the first"
    ):
        await harness.watch.run()


@pytest.mark.parametrize("attribute", ["num_calls", "copy"])
async def test_progress_of_any_copy_is_no_hang(attribute: str) -> None:
    def progress(_: int) -> None:
        setattr(harness.guarded, attribute, getattr(harness.guarded, attribute) + 1)

    harness = Harness(lambda number: progress(number) if number % 50 == 0 else None)
    harness.step()
    await harness.watch.run()
    assert harness.stats.value(HUNG) == 0


async def test_idle_engine_is_no_hang() -> None:
    harness = Harness(lambda _: None)
    await harness.watch.run()
    assert harness.num_abandoned == 0


async def test_process_that_was_stopped_for_a_minute_sees_no_hang() -> None:
    def stop(number: int) -> None:
        harness.guarded.num_calls += number % 4 == 0

    harness = Harness(stop)
    harness.sleep_takes_s = 60.0
    harness.step()
    await harness.watch.run()
    assert harness.num_abandoned == 0


async def test_slow_call_is_shown_while_it_runs_and_not_afterwards() -> None:
    seen: list[tuple[float, str]] = []

    def look(number: int) -> None:
        seen.append(
            (harness.stats.value(statistics.ENVIRONMENT_CALL_S), harness.label(statistics.ENVIRONMENT_CALL))
        )
        if number == 12:
            harness.calls.end()

    harness = Harness(look, sleeps=14)
    harness.step()
    await harness.watch.run()
    assert seen[2] == (0.0, "")
    shown_s, shown = seen[10]
    assert shown_s >= 4.0
    assert shown.startswith("Copy 3 of 'My-v0' does not return from step: ")
    assert seen[13] == (0.0, "")


async def test_no_timeout_waits_for_ever_and_still_shows_the_call() -> None:
    harness = Harness(lambda _: None, timeout_s=0.0)
    harness.step()
    await harness.watch.run()
    assert harness.num_abandoned == 0
    assert harness.stats.value(statistics.ENVIRONMENT_CALL_S) > 400.0


async def test_faults_are_counted_and_logged_once_a_line_and_once_a_period() -> None:
    log = FaultLog("My-v0", num_units=2)

    def fail(number: int) -> None:
        if number == 2:
            for copy in range(20):
                trace = "Traceback ..." if copy == 4 else ""
                fault = Fault("raised", "My-v0", copy % 2, "step", "ValueError('x') at my.py:1", trace)
                log.add(fault, unit=copy % 2, step=200 * copy)
            harness.control.record_faults(log)
        if number == 4:
            log.add(log.not_finite(1, "step", "observations[2] is nan"), unit=1, step=10_000)
            harness.control.record_faults(log)

    harness = Harness(fail, sleeps=6)
    await harness.watch.run()
    assert harness.stats.value(statistics.ENVIRONMENT_FAULTS.member("raised")) == 20
    assert harness.stats.value(statistics.ENVIRONMENT_FAULTS.member("not_finite")) == 1
    assert [(line["num"], "exception" in line) for line in harness.logged] == [(20, True), (1, False)]
    assert harness.label(statistics.ENVIRONMENT_FAULT) == (
        "Copy 1 of 'My-v0' returned a number that is not finite from step: observations[2] is nan"
    )


async def test_timer_for_a_blocked_interpreter_is_set_while_the_watch_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timers: list[float | None] = []

    def later(seconds: float, *, exit: bool, file: int) -> None:
        assert exit
        assert file == 2
        timers.append(seconds)

    monkeypatch.setattr(faulthandler, "dump_traceback_later", later)
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: timers.append(None))
    await Harness(lambda _: None, sleeps=3).watch.run()
    assert timers == [40.0, 40.0, 40.0, None]


async def test_wait_for_another_service_is_no_call_that_hangs() -> None:
    def script(number: int) -> None:
        if number == 1:
            harness.step()
            harness.control.asking = True

    harness = Harness(script, timeout_s=5.0, sleeps=200)
    await harness.watch.run()
    assert harness.stats.value(HUNG) == 0
    assert harness.stats.value(statistics.ENVIRONMENT_CALL_S) == 0
