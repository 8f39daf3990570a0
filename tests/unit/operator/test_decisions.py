"""One decision at a time: from what is observed of a run to its record and the actions."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from tidegate.operator.config import HelmConfig, OperatorConfig, QuotaConfig, QuotaLimits
from tidegate.operator.decisions import (
    GRACE_S,
    AddFinalizer,
    ApplyRelease,
    JobInFlight,
    LetRestart,
    RemoveFinalizer,
    RunObservation,
    RunStep,
    ScaleWorkload,
    StopJob,
    UninstallRelease,
    decide,
)
from tidegate.operator.objects import ReleaseRecord, RunKey, WorkloadState
from tidegate.operator.plans import ActorPool, ReleasePlan, ScaledWorkload
from tidegate.operator.quotas import QuotaDemand

KEY = RunKey("space", "rl")
CONFIG = OperatorConfig(helm=HelmConfig(retry_s=600.0), restart_s=900.0)
ACTOR = ScaledWorkload("Deployment", "rl-actor")
LEARNER = ScaledWorkload("StatefulSet", "rl-learner", is_last=True)
PLAN = ReleasePlan(
    digest="d1", run_id="space-rl", pools=(ActorPool("rl-actor", 0, 1),), scaled=(ACTOR, LEARNER)
)
NOW_S = 10_000.0


def workloads(
    of: Mapping[str, dict[str, Any]] | None = None, *, actors: int = 2, learners: int = 1
) -> tuple[WorkloadState, ...]:
    """The workloads of a release; ``of`` changes those of a service."""
    found = [
        WorkloadState("StatefulSet", "rl-nats", "nats", 1, is_settled=True),
        WorkloadState("StatefulSet", "rl-admission", "admission", 1, is_settled=True),
        WorkloadState("StatefulSet", "rl-learner", "learner", learners, is_settled=True),
        WorkloadState("Deployment", "rl-actor", "actor", actors, is_settled=True),
    ]
    return tuple(msgspec.structs.replace(each, **(of or {}).get(each.service, {})) for each in found)


NEW = RunObservation(KEY, 100.0, PLAN, ReleaseRecord())
INSTALLED = msgspec.structs.replace(
    NEW,
    record=ReleaseRecord(state="Installed", exists=True, digest="d1", admitted=True, run_id="space-rl"),
    workloads=workloads(),
    restarted_at_s=NOW_S - 5,
)


def step(
    run: RunObservation, config: OperatorConfig = CONFIG, *, now_s: float = NOW_S, **changes: Any
) -> RunStep:
    return decide([msgspec.structs.replace(run, **changes)], config, now_s=now_s, chart="0.1.0")[KEY]


def record(run: RunObservation, **changes: Any) -> ReleaseRecord:
    return msgspec.structs.replace(run.record, **changes)


def changed(**changes: Any) -> ReleasePlan:
    return msgspec.structs.replace(PLAN, digest="d2", **changes)


def test_a_finalizer_comes_before_anything_is_made() -> None:
    assert step(NEW, is_finalized=False).actions == (AddFinalizer(),)


def test_a_new_run_is_installed_and_the_record_says_so_before() -> None:
    done = step(NEW)
    assert done.actions == (ApplyRelease(),)
    assert (done.record.state, done.record.exists, done.record.digest) == ("Applying", True, "")
    assert (done.record.admitted, done.record.run_id, done.record.chart) == (True, "space-rl", "0.1.0")


def test_while_helm_works_nothing_else_is_done() -> None:
    done = step(NEW, record=record(NEW, exists=True, admitted=True), job=JobInFlight("apply", "d1"))
    assert (done.actions, done.record.state) == ((), "Applying")


def test_helm_ends_where_something_else_is_wanted() -> None:
    for plan in (changed(), ReleasePlan(problem="no")):
        assert step(INSTALLED, job=JobInFlight("apply", "d1"), plan=plan).actions == (StopJob(),)
    assert step(NEW, job=JobInFlight("apply", "d1"), is_suspended=True).actions == (StopJob(),)
    assert step(INSTALLED, job=JobInFlight("apply", "d1"), is_suspended=True).actions == ()


def test_an_installed_run_needs_nothing() -> None:
    done = step(INSTALLED)
    assert (done.actions, done.record) == ((), INSTALLED.record)


def test_a_release_that_is_gone_is_made_again() -> None:
    assert step(INSTALLED, workloads=()).actions == (ApplyRelease(),)


def test_a_changed_spec_holds_every_workload_before_helm_changes_them() -> None:
    done = step(INSTALLED, plan=changed())
    (applied,) = done.actions
    assert isinstance(applied, ApplyRelease)
    assert [each.name for each in applied.hold] == ["rl-nats", "rl-admission", "rl-learner", "rl-actor"]
    assert done.record.digest == "d1", "until helm has ended"


def test_held_workloads_restart_one_after_another() -> None:
    held = {each: {"is_held": True} for each in ("nats", "admission", "learner", "actor")}
    first = step(INSTALLED, workloads=workloads(held))
    assert [each.workload.name for each in first.actions if isinstance(each, LetRestart)] == ["rl-nats"]
    assert first.record.state == "Restarting"
    assert first.record.message == "rl-nats restarts, 3 others wait"
    assert first.record.restarted_at == "1970-01-01T02:46:40Z"
    busy = step(INSTALLED, workloads=workloads({**held, "nats": {"is_settled": False}}))
    assert (busy.actions, busy.record.message) == ((), "rl-nats restarts, 3 others wait")
    second = step(INSTALLED, workloads=workloads({**held, "nats": {}}))
    assert [each.workload.name for each in second.actions if isinstance(each, LetRestart)] == ["rl-admission"]


def test_a_service_that_does_not_come_back_keeps_the_others_at_the_old_revision() -> None:
    held = {"learner": {"is_held": True}, "actor": {"is_held": True}, "nats": {"is_settled": False}}
    late = step(INSTALLED, workloads=workloads(held), restarted_at_s=NOW_S - CONFIG.restart_s - 1)
    assert (late.actions, late.record.state) == ((), "Failed")
    assert (
        "rl-nats is not ready 900 s after its restart; 2 others keep the old revision" in late.record.message
    )
    back = step(INSTALLED, record=late.record, workloads=workloads({**held, "nats": {}}))
    assert (back.record.state, len(back.actions)) == ("Restarting", 1)


def test_a_refused_spec_is_not_tried_again_and_another_one_is() -> None:
    refused = record(NEW, exists=True, refused="d1", message="unknown key", admitted=True)
    done = step(NEW, record=refused)
    assert (done.actions, done.record.state, done.record.message) == ((), "Refused", "unknown key")
    assert not done.record.admitted, "it never worked, so it takes no place"
    assert isinstance(step(NEW, record=done.record, plan=changed()).actions[0], ApplyRelease)


def test_a_run_whose_change_was_refused_keeps_its_place() -> None:
    done = step(INSTALLED, record=record(INSTALLED, refused="d2", message="no"), plan=changed())
    assert (done.record.state, done.record.admitted) == ("Refused", True)


def test_a_spec_that_the_operator_cannot_take_says_why_and_changes_nothing() -> None:
    done = step(INSTALLED, plan=ReleasePlan(problem="spec sets extraObjects"))
    assert (done.actions, done.record.state) == ((), "Refused")
    assert done.record.message == "spec sets extraObjects"
    assert done.record.digest == "d1"


def test_a_failed_release_is_tried_again_after_its_pause() -> None:
    failed = record(NEW, exists=True, failed="d1", message="no answer", admitted=True)
    waits = step(NEW, record=failed, failed_at_s=NOW_S - 10)
    assert (waits.actions, waits.record.state, waits.record.admitted) == ((), "Failed", False)
    assert isinstance(step(NEW, record=failed, failed_at_s=NOW_S - 601).actions[0], ApplyRelease)
    assert isinstance(
        step(NEW, record=failed, failed_at_s=NOW_S - 10, plan=changed()).actions[0], ApplyRelease
    )


# -- suspension -------------------------------------------------------------------------------------------------------


def test_a_run_that_is_suspended_from_the_start_is_not_installed() -> None:
    done = step(NEW, is_suspended=True)
    assert (done.actions, done.record.state, done.record.admitted) == ((), "Suspended", False)


def test_a_suspended_run_finishes_its_work_first() -> None:
    done = step(INSTALLED, is_suspended=True)
    assert (done.actions, done.record.state) == ((), "Suspending")
    assert done.record.message == "work in flight is finished"


def test_then_its_actors_go_to_0_and_after_them_the_learner() -> None:
    first = step(INSTALLED, is_suspended=True, is_idle=True)
    assert first.actions == (ScaleWorkload(ACTOR, 0),)
    assert first.record.replicas == {"rl-actor": 2, "rl-learner": 1}
    second = step(
        INSTALLED, is_suspended=True, is_idle=True, record=first.record, workloads=workloads(actors=0)
    )
    assert second.actions == (ScaleWorkload(LEARNER, 0),)
    assert second.record.replicas == first.record.replicas
    third = step(
        INSTALLED,
        is_suspended=True,
        is_idle=True,
        record=msgspec.structs.replace(second.record, gpus=4),
        workloads=workloads(actors=0, learners=0),
    )
    assert (third.actions, third.record.state, third.record.gpus) == ((), "Suspended", 0)


def test_resuming_restores_the_numbers_and_then_forgets_them() -> None:
    parked = record(INSTALLED, state="Suspended", replicas={"rl-actor": 5, "rl-learner": 1})
    first = step(INSTALLED, record=parked, workloads=workloads(actors=0, learners=0))
    assert first.actions == (ScaleWorkload(ACTOR, 5), ScaleWorkload(LEARNER, 1))
    assert first.record.replicas == parked.replicas
    second = step(INSTALLED, record=first.record, workloads=workloads(actors=5))
    assert (second.actions, second.record.replicas, second.record.state) == ((), {}, "Installed")


def test_a_number_that_a_person_set_meanwhile_stays() -> None:
    parked = record(INSTALLED, replicas={"rl-actor": 5, "rl-learner": 1})
    assert step(INSTALLED, record=parked, workloads=workloads(actors=3)).actions == ()


def test_a_change_of_a_suspended_run_is_applied_when_it_resumes() -> None:
    parked = record(INSTALLED, replicas={"rl-actor": 2, "rl-learner": 1})
    zero = workloads(actors=0, learners=0)
    waits = step(INSTALLED, record=parked, workloads=zero, plan=changed(), is_suspended=True, is_idle=True)
    assert waits.actions == ()
    assert "the changed spec is applied when it resumes" in waits.record.message
    applied = step(INSTALLED, record=parked, workloads=zero, plan=changed())
    assert isinstance(applied.actions[0], ApplyRelease)
    assert applied.record.replicas == parked.replicas


def test_without_admissions_word_pods_end_at_once() -> None:
    blind = msgspec.structs.replace(PLAN, reads_run=False)
    assert step(INSTALLED, plan=blind, is_suspended=True).actions == (ScaleWorkload(ACTOR, 0),)


# -- the end ----------------------------------------------------------------------------------------------------------


def test_a_complete_run_gives_back_its_place() -> None:
    done = step(INSTALLED, record=record(INSTALLED, gpus=4), completed_at_s=NOW_S)
    assert (done.actions, done.record.admitted, done.record.gpus) == ((), False, 0)


def test_whatever_is_done_with_a_complete_run_its_place_is_anothers() -> None:
    holds = record(INSTALLED, gpus=4)
    cases: list[dict[str, Any]] = [
        {"ttl_s": 0.0},
        {"job": JobInFlight("uninstall")},
        {"is_deleting": True},
        {"is_suspended": True},
    ]
    for changes in cases:
        done = step(INSTALLED, record=holds, completed_at_s=NOW_S - 900, **changes)
        assert (done.record.admitted, done.record.gpus) == (False, 0), changes


def test_after_its_time_to_live_a_complete_run_is_uninstalled_and_its_record_stays() -> None:
    ended: dict[str, Any] = {"completed_at_s": NOW_S - 400, "ttl_s": 300.0}
    assert step(INSTALLED, completed_at_s=NOW_S - 400, ttl_s=500.0).actions == ()
    first = step(INSTALLED, **ended)
    assert (first.actions, first.record.state) == ((UninstallRelease(),), "Uninstalling")
    gone = msgspec.structs.replace(first.record, exists=False)
    waits = step(INSTALLED, record=gone, **ended)
    assert (waits.actions, waits.record.state) == ((), "Uninstalling"), "its pods end"


def test_an_expired_run_starts_again_only_with_another_spec() -> None:
    expired = ReleaseRecord(state="Expired", expired="d1", message="uninstalled")
    assert step(NEW, record=expired).actions == ()
    again = step(NEW, record=expired, plan=changed())
    assert isinstance(again.actions[0], ApplyRelease)
    assert again.record.expired == ""


def test_right_after_an_upgrade_an_old_completion_does_not_count() -> None:
    ended: dict[str, Any] = {"completed_at_s": 100.0, "ttl_s": 0.0, "applied_at_s": NOW_S - GRACE_S + 1}
    assert step(INSTALLED, **ended).actions == ()
    assert step(INSTALLED, now_s=NOW_S + 2, **ended).actions == (UninstallRelease(),)


def test_a_run_that_was_refused_from_the_start_ends_after_its_time_to_live_as_well() -> None:
    refused = record(NEW, state="Refused", exists=True, refused="d1", message="unknown key")
    early = step(NEW, record=refused, failed_at_s=NOW_S - 10, ttl_s=60.0)
    assert early.actions == ()
    late = step(NEW, record=refused, failed_at_s=NOW_S - 61, ttl_s=60.0)
    assert late.actions == (UninstallRelease(),)
    last = step(
        NEW, record=record(NEW, refused="d1", message="unknown key"), failed_at_s=NOW_S - 61, ttl_s=60.0
    )
    assert last.record.state == "Expired"
    assert "unknown key" in last.record.message


def test_deletion_uninstalls_waits_for_the_pods_and_lets_go() -> None:
    first = step(INSTALLED, is_deleting=True)
    assert (first.actions, first.record.state) == ((UninstallRelease(),), "Uninstalling")
    works = step(INSTALLED, is_deleting=True, job=JobInFlight("uninstall"))
    assert works.actions == ()
    gone = record(INSTALLED, exists=False)
    assert step(INSTALLED, is_deleting=True, record=gone).actions == ()
    assert step(INSTALLED, is_deleting=True, record=gone, workloads=()).actions == (RemoveFinalizer(),)


def test_deletion_ends_an_installation() -> None:
    assert step(INSTALLED, is_deleting=True, job=JobInFlight("apply", "d1")).actions == (StopJob(),)


def test_deletion_of_a_run_that_was_never_installed_lets_go_at_once() -> None:
    assert step(NEW, is_deleting=True).actions == (RemoveFinalizer(),)
    assert step(NEW, is_deleting=True, is_finalized=False).actions == ()


# -- quotas -----------------------------------------------------------------------------------------------------------


def limited(**limits: int) -> OperatorConfig:
    return OperatorConfig(quota=QuotaConfig(total=QuotaLimits(**limits)))


def gpus(number: int) -> ReleasePlan:
    return msgspec.structs.replace(PLAN, learner_gpus=number)


def two(config: OperatorConfig, first: RunObservation, second: RunObservation) -> tuple[RunStep, RunStep]:
    other = RunKey("space", "other")
    second = msgspec.structs.replace(second, key=other, created_at_s=first.created_at_s + 1)
    steps = decide([second, first], config, now_s=NOW_S, chart="0.1.0")
    return steps[first.key], steps[other]


def test_beyond_the_quota_a_run_waits_with_the_numbers() -> None:
    installed, waits = two(limited(runs=1), INSTALLED, NEW)
    assert installed.record.state == "Installed"
    assert (waits.actions, waits.record.state) == ((), "Queued")
    assert waits.record.message == "1 of 1 runs of all namespaces are taken"
    assert not waits.record.admitted


@pytest.mark.parametrize("change", [{"completed_at_s": NOW_S}, {"record": ReleaseRecord()}])
def test_it_starts_once_there_is_room(change: dict[str, Any]) -> None:
    ends = msgspec.structs.replace(INSTALLED, is_deleting="record" in change, **change)
    _, starts = two(limited(runs=1), ends, NEW)
    assert isinstance(starts.actions[0], ApplyRelease)


def test_a_suspended_run_holds_no_gpus_and_waits_for_them_when_it_resumes() -> None:
    plan = gpus(4)
    zero = workloads(actors=0, learners=0)
    parked = record(INSTALLED, state="Suspended", replicas={"rl-learner": 1}, gpus=0)
    suspended = msgspec.structs.replace(
        INSTALLED, plan=plan, record=parked, workloads=zero, is_suspended=True
    )
    _, starts = two(limited(gpus=4), suspended, msgspec.structs.replace(NEW, plan=plan))
    assert isinstance(starts.actions[0], ApplyRelease)
    works = msgspec.structs.replace(INSTALLED, plan=plan, record=record(INSTALLED, gpus=4))
    resumed = msgspec.structs.replace(suspended, is_suspended=False)
    waits, _ = two(limited(gpus=4), resumed, works)
    assert (waits.actions, waits.record.state) == ((), "Queued")
    assert "it asks for 4 GPUs, and 4 of 4 of all namespaces are taken" in waits.record.message
    assert waits.record.replicas == parked.replicas


def test_a_change_to_more_gpus_waits_with_the_old_release() -> None:
    small = msgspec.structs.replace(INSTALLED, record=record(INSTALLED, gpus=2), plan=changed(learner_gpus=6))
    other = msgspec.structs.replace(INSTALLED, plan=gpus(4), record=record(INSTALLED, gpus=4))
    waits, _ = two(limited(gpus=8), small, other)
    assert (waits.actions, waits.record.state) == ((), "Queued")
    assert (waits.record.digest, waits.record.gpus) == ("d1", 2)


def test_a_change_to_fewer_gpus_gives_them_back_once_it_is_applied() -> None:
    big = record(INSTALLED, gpus=8)
    applying = step(INSTALLED, record=big, plan=changed(learner_gpus=2))
    assert applying.record.gpus == 8
    applied = msgspec.structs.replace(applying.record, digest="d2")
    assert step(INSTALLED, record=applied, plan=changed(learner_gpus=2)).record.gpus == 2


def test_what_cannot_be_read_still_counts() -> None:
    absent = [QuotaDemand(RunKey("dark", "x"), 0.0, None, has_place=True, granted=0)]
    steps = decide([NEW], limited(runs=1), now_s=NOW_S, chart="0.1.0", absent=absent)
    assert steps[KEY].record.state == "Queued"
