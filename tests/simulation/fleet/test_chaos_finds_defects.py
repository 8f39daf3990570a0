"""Chaos runs find each defect planted here, by the invariant that it breaks."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tidegate.admission.state import Decision
from tidegate.core import admission as law
from tidegate.core import batching, hard_sync
from tidegate.core.admission import Admit, Delay, Flow, Limits
from tidegate.core.hard_sync import HardSyncConfig, SyncState, SyncView
from tidegate.core.ids import PolicyVersion
from tidegate.core.records import VersionSpan
from tidegate.core.staleness import Fresh, LineageTree, StalenessLimits, Verdict, judge
from tidegate.fleet import admission as fleet_admission
from tidegate.fleet import queue as fleet_queue
from tidegate.fleet.actors import FleetActors
from tidegate.fleet.chaos import ChaosReport, draw_chaos_run, simulate_chaos
from tidegate.fleet.rollout import Rollout
from tidegate.fleet.weights import FleetWeights
from tidegate.learner import state as learner_state
from tidegate.task_queue.state import Snapshot

pytestmark = pytest.mark.simulation

SEEDS_TRIED = 30


def first_failure(*, ticks_max: int = 500) -> str:
    """The first violation of the first run that has one."""
    return failing_run(ticks_max=ticks_max).violations[0]


def failing_run(*, ticks_max: int) -> ChaosReport:
    for seed in range(SEEDS_TRIED):
        report = simulate_chaos(draw_chaos_run(seed, ticks_max=ticks_max))
        if not report.passed:
            return report
    pytest.fail("the planted defect was not found")


def replace_judge(monkeypatch: pytest.MonkeyPatch, judgement: Callable[..., Verdict]) -> None:
    monkeypatch.setattr(batching, "judge", judgement)
    monkeypatch.setattr(learner_state, "judge", judgement)


def test_finds_a_law_that_is_one_batch_too_generous(monkeypatch: pytest.MonkeyPatch) -> None:
    real = law.capacity

    def capacity(limits: Limits, flow: Flow) -> int:
        return real(msgspec.structs.replace(limits, max_lag=limits.max_lag + 1), flow)

    monkeypatch.setattr(law, "capacity", capacity)
    assert first_failure().startswith("I7")


def test_finds_a_judgement_that_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge_nothing(_spans: tuple[VersionSpan, ...], **_context: Any) -> Verdict:
        return Fresh(lag=0, span=0, age_s=0.0)

    replace_judge(monkeypatch, judge_nothing)
    assert first_failure().startswith("I1")


def test_finds_a_budget_that_is_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge_kindly(spans: tuple[VersionSpan, ...], *, limits: StalenessLimits, **context: Any) -> Verdict:
        return judge(spans, limits=StalenessLimits(limits.max_lag + 1, limits.max_age_s), **context)

    replace_judge(monkeypatch, judge_kindly)
    assert first_failure().startswith("I1")


def test_finds_an_age_that_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge_lag_alone(
        spans: tuple[VersionSpan, ...], *, limits: StalenessLimits, **context: Any
    ) -> Verdict:
        return judge(spans, limits=StalenessLimits(limits.max_lag, float("inf")), **context)

    replace_judge(monkeypatch, judge_lag_alone)
    failure = first_failure()
    assert failure.startswith("I1")
    assert "s old" in failure


def test_finds_a_distance_that_ignores_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_step(_tree: LineageTree, head: PolicyVersion, version: PolicyVersion) -> int:
        return max(0, head.step - version.step)

    monkeypatch.setattr(LineageTree, "distance", by_step)
    assert first_failure(ticks_max=2000).startswith("I1")


def test_finds_tasks_that_are_lost_with_their_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(actors: FleetActors, rollout: Rollout) -> None:
        actors.overdue.remove(rollout)

    monkeypatch.setattr(FleetActors, "_redeliver", forget)
    assert first_failure().startswith("I2")


def test_finds_tasks_that_come_back_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def deliver_twice(actors: FleetActors, rollout: Rollout) -> None:
        actors.overdue.remove(rollout)
        actors.tasks.extend((rollout, rollout))

    monkeypatch.setattr(FleetActors, "_redeliver", deliver_twice)
    assert first_failure().startswith("I2")


def test_finds_a_version_that_never_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget_what_waited(weights: FleetWeights) -> None:
        weights._died_at_s = float("inf")  # pyright: ignore[reportPrivateUsage] -- the defect

    monkeypatch.setattr(FleetWeights, "restart", forget_what_waited)
    assert first_failure().startswith("I9")


def test_finds_actors_that_wait_for_an_abandoned_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    def same_branch(_tree: LineageTree, version: PolicyVersion, required: PolicyVersion) -> bool:
        return version.lineage == required.lineage and version.step >= required.step

    monkeypatch.setattr(LineageTree, "satisfies", same_branch)
    assert first_failure(ticks_max=2000).startswith(("I9", "recovery"))


def test_finds_limits_that_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fleet_admission.decide
    calls = [0]

    def alternating(*arguments: Any, **named: Any) -> Decision:
        calls[0] += 1
        decision = real(*arguments, **named)
        limits = msgspec.structs.replace(decision.limits, paused=calls[0] % 2 == 0)
        return msgspec.structs.replace(decision, limits=limits)

    monkeypatch.setattr(fleet_admission, "decide", alternating)
    assert first_failure().startswith("oscillation")


def test_finds_admission_that_closes_and_opens_for_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fleet_queue.decide
    calls = [0]

    def wavering(snapshot: Snapshot, *, group_size: int) -> Admit | Delay:
        calls[0] += 1
        decision = real(snapshot, group_size=group_size)
        if isinstance(decision, Admit) and calls[0] % 2:
            return Delay(reason=f"{fleet_queue.BUDGET_FILLED}: or so it seems")
        return decision

    monkeypatch.setattr(fleet_queue, "decide", wavering)
    assert first_failure().startswith("oscillation")


def test_finds_limits_that_stay_low_once_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fleet_admission.decide
    lowest: dict[Limits, int] = {}

    def sticky(run_file: Limits, *arguments: Any, **named: Any) -> Decision:
        decision = real(run_file, *arguments, **named)
        lowest[run_file] = min(lowest.get(run_file, decision.limits.max_running), decision.limits.max_running)
        limits = msgspec.structs.replace(decision.limits, max_running=lowest[run_file])
        return msgspec.structs.replace(decision, limits=limits)

    monkeypatch.setattr(fleet_admission, "decide", sticky)
    failures: list[str] = []
    for seed in range(2 * SEEDS_TRIED):
        lowest.clear()
        failures += simulate_chaos(draw_chaos_run(seed)).violations
        if failures:
            break
    assert failures, "the planted defect was not found"
    assert failures[0].startswith("recovery")


def test_budget_filled_is_the_reason_of_the_law() -> None:
    limits = Limits(max_lag=0, batch_size=2, max_running=8)
    decision = law.decide_admission(limits, Flow(running=0, in_flight=2), group_size=1)
    assert isinstance(decision, Delay)
    assert decision.reason.startswith(fleet_queue.BUDGET_FILLED)


def test_finds_a_hard_sync_that_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    real = hard_sync.advance

    def patient(state: SyncState, view: SyncView, config: HardSyncConfig, **named: Any) -> SyncState:
        for_ever = msgspec.structs.replace(config, timeout_s=1e9)
        return real(state, msgspec.structs.replace(view, running=1), for_ever, **named)

    monkeypatch.setattr(hard_sync, "advance", patient)
    assert failing_run(ticks_max=1_000).violations[0].startswith("I9")
