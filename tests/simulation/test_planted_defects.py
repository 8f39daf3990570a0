"""The simulation finds defects: each one planted here is caught by the invariant that it breaks.

A few seeds are tried, because the fault that exposes the defect must be drawn first.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import pytest

from tidegate.core import admission, batching
from tidegate.core.admission import Flow, Limits
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import Fresh
from tidegate.learner import state as learner_state
from tidegate.runtime import lifecycle
from tidegate.runtime.lifecycle import ServiceLifecycle, ServiceServer
from tidegate.runtime.service import ServiceParts
from tidegate.sim.faults import FAULTS, Fault, drain_blocked_actor, drain_one
from tidegate.sim.scenario import draw_scenario
from tidegate.sim.simulation import Report, simulate
from tidegate.task_queue import journal as task_queue_journal
from tidegate.task_queue.state import TrajectoryState, state_after
from tidegate.trajectory_store import restore
from tidegate.trajectory_store.ledger import Ledger
from tidegate.trajectory_store.state import Location
from tidegate.trajectory_store.store import Ingested, Store

pytestmark = pytest.mark.simulation

TICKS = 1200
DRAINS: Mapping[Fault, int] = {**FAULTS, drain_one: 15}


def first_failure(*, seeds: Sequence[int], max_lag: int, faults: Mapping[Fault, int] = FAULTS) -> Report:
    """The first run of these seeds in which an invariant did not hold."""
    for seed in seeds:
        report = simulate(draw_scenario(seed, ticks=TICKS, max_lag=max_lag), faults=faults)
        if not report.passed:
            return report
    pytest.fail("the planted defect was not caught")


def test_catches_a_skipped_staleness_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge_nothing(_spans: tuple[VersionSpan, ...], **_context: Any) -> Fresh:
        return Fresh(lag=0, span=0, age_s=0.0)

    monkeypatch.setattr(batching, "judge", judge_nothing)
    monkeypatch.setattr(learner_state, "judge", judge_nothing)
    report = first_failure(seeds=range(10, 16), max_lag=0)
    assert report.violations[0].startswith("I1:"), report.violations


def test_catches_a_capacity_that_is_one_batch_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    real = admission.capacity

    def capacity(limits: Limits, flow: Flow) -> int:
        return real(Limits(limits.max_lag + 1, limits.batch_size, limits.max_running), flow)

    monkeypatch.setattr(admission, "capacity", capacity)
    report = first_failure(seeds=range(6), max_lag=0)
    assert report.violations[0].startswith("I7:"), report.violations


def test_catches_a_commit_that_leaves_its_batch_to_be_trained_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(ledger: Ledger, batch_id: str, *, now_s: float, **_commit: Any) -> list[Location]:
        return ledger.release(batch_id, dropped=(), now_s=now_s)

    def holds(ledger: Ledger, batch_id: str, *, learner_id: str) -> bool:
        return True

    monkeypatch.setattr(Ledger, "commit", release)
    # Otherwise a learner whose batch was given back is leased nothing.
    monkeypatch.setattr(Ledger, "holds", holds)
    report = first_failure(seeds=range(6), max_lag=4)
    assert report.violations[0].startswith("I3:"), report.violations


def test_catches_a_restore_that_forgets_what_the_surviving_branch_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing_survives(_version: PolicyVersion, _tree: object) -> dict[str, int]:
        return {}

    monkeypatch.setattr(restore, "surviving_steps", nothing_survives)
    report = first_failure(seeds=range(6), max_lag=4)
    assert report.violations[0].startswith(("I3:", "I2:")), report.violations


def test_catches_a_queue_that_ignores_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    def ignore_drops(state: TrajectoryState, outcome: str) -> TrajectoryState:
        return state if outcome == "dropped" else state_after(state, outcome)

    monkeypatch.setattr(task_queue_journal, "state_after", ignore_drops)
    report = first_failure(seeds=range(6), max_lag=1)
    assert report.violations[0].startswith(("I2:", "I9:")), report.violations


def test_catches_a_store_that_acknowledges_what_it_did_not_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Store.ingest

    def lose_the_last(store: Store, messages: Sequence[Any], *, now_s: float) -> Ingested:
        return real(store, messages[:-1], now_s=now_s)

    monkeypatch.setattr(Store, "ingest", lose_the_last)
    report = first_failure(seeds=range(3), max_lag=4)
    assert report.violations[0].startswith("I2:"), report.violations


def test_catches_a_store_that_takes_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def never_full(_store: Store, most: int) -> int:
        return most

    monkeypatch.setattr(Store, "room", never_full)
    report = first_failure(seeds=range(8), max_lag=16)
    assert report.violations[0].startswith("I7:"), report.violations


def test_catches_a_lifecycle_that_stops_before_its_loops_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def end_nothing(_lifecycle: ServiceLifecycle, _tasks: Sequence[asyncio.Task[None]]) -> None:
        """Work that the loops hold is lost."""

    monkeypatch.setattr(ServiceLifecycle, "_end_loops", end_nothing)
    report = first_failure(seeds=range(6), max_lag=4, faults={drain_blocked_actor: 1})
    assert report.violations[0].startswith("I10:"), report.violations


def test_catches_a_lifecycle_that_closes_a_service_whose_calls_are_still_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextlib.asynccontextmanager
    async def close_under_calls(
        parts: ServiceParts, server: ServiceServer, *, address: str
    ) -> AsyncGenerator[None]:
        await server.start(address)
        yield
        if parts.close is not None:
            await parts.close()

    monkeypatch.setattr(lifecycle, "served", close_under_calls)
    # A call must be open in the moment of a drain: one seed in eight.
    report = first_failure(seeds=range(22, 46), max_lag=4, faults=DRAINS)
    assert report.violations[0].startswith("I9:"), report.violations
