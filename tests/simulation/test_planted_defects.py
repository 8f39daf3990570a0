"""The simulation finds defects: each one planted here is caught, and by the invariant that it breaks.

A simulator that passes everything proves nothing. Seeds are tried until one of a few catches the defect, because a
fault that brings it out must come first.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from tidegate.core import admission, batching
from tidegate.core.admission import Flow, Limits
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import Fresh
from tidegate.learner import state as learner_state
from tidegate.sim.scenario import draw_scenario
from tidegate.sim.simulation import Report, simulate
from tidegate.task_queue import journal as task_queue_journal
from tidegate.task_queue.state import TrajectoryState, state_after
from tidegate.trajectory_store import restore
from tidegate.trajectory_store.ledger import Ledger
from tidegate.trajectory_store.state import Location
from tidegate.trajectory_store.store import Intake, Store

pytestmark = pytest.mark.simulation

TICKS = 1200


def first_failure(*, seeds: Sequence[int], max_lag: int) -> Report:
    """The first run of these seeds in which an invariant did not hold."""
    for seed in seeds:
        report = simulate(draw_scenario(seed, ticks=TICKS, max_lag=max_lag))
        if not report.passed:
            return report
    pytest.fail("the planted defect was not caught")


def test_catches_a_skipped_staleness_judgement(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge_nothing(_spans: tuple[VersionSpan, ...], **_context: Any) -> Fresh:
        return Fresh(lag=0, span=0, age_s=0.0)

    monkeypatch.setattr(batching, "judge", judge_nothing)
    monkeypatch.setattr(learner_state, "judge", judge_nothing)
    report = first_failure(seeds=range(6), max_lag=0)
    assert report.violations[0].startswith("I1:"), report.violations


def test_catches_a_capacity_that_is_one_batch_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    real = admission.capacity

    def capacity(limits: Limits, flow: Flow) -> int:
        return real(Limits(limits.max_lag + 1, limits.batch_size, limits.max_running), flow)

    monkeypatch.setattr(admission, "capacity", capacity)
    report = first_failure(seeds=range(6), max_lag=0)
    assert report.violations[0].startswith("I7:"), report.violations


def test_catches_a_commit_that_leaves_its_batch_to_be_trained_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_back(ledger: Ledger, batch_id: str, *, now_s: float, **_commit: Any) -> list[Location]:
        return ledger.release(batch_id, dropped=(), now_s=now_s)

    monkeypatch.setattr(Ledger, "commit", give_back)
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


def test_catches_a_queue_that_does_not_hear_of_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(state: TrajectoryState, outcome: str) -> TrajectoryState:
        return state if outcome == "dropped" else state_after(state, outcome)

    monkeypatch.setattr(task_queue_journal, "state_after", deaf)
    report = first_failure(seeds=range(6), max_lag=1)
    assert report.violations[0].startswith(("I2:", "I9:")), report.violations


def test_catches_a_store_that_acknowledges_what_it_did_not_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Store.ingest

    def lose_the_last(store: Store, messages: Sequence[Any], *, now_s: float) -> Intake:
        return real(store, messages[:-1], now_s=now_s)

    monkeypatch.setattr(Store, "ingest", lose_the_last)
    report = first_failure(seeds=range(3), max_lag=4)
    assert report.violations[0].startswith("I2:"), report.violations


def test_catches_a_store_that_takes_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def never_full(_store: Store) -> bool:
        return False

    monkeypatch.setattr(Store, "is_full", never_full)
    report = first_failure(seeds=range(8), max_lag=16)
    assert report.violations[0].startswith("I7:"), report.violations
