"""What the operator does next: from all that was observed to a new record and actions for each run. Pure.

The same observations give the same decisions, so a round may be repeated, and the next leader continues from the
records in the TrainingRuns. A record is written before its actions are carried out.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from tidegate.admission.kubernetes.training_run import time_text
from tidegate.operator.config import OperatorConfig
from tidegate.operator.objects import ReleaseRecord, RunKey, WorkloadState
from tidegate.operator.plans import ReleasePlan, ScaledWorkload
from tidegate.operator.quotas import QuotaDemand, QuotaVerdict, judge
from tidegate.operator.restarts import in_order

# After an upgrade admission needs up to two minutes to see another target: until then the run looks complete.
GRACE_S = 300.0


class JobInFlight(msgspec.Struct, frozen=True):
    """helm works for a run. ``digest``: of the spec that it applies."""

    kind: Literal["apply", "uninstall"]
    digest: str = ""


class RunObservation(msgspec.Struct, frozen=True):
    """One managed TrainingRun and its release at one moment; times in seconds since the epoch.

    ``is_idle``: admission admits nothing and nothing is in flight. ``completed_at_s``: when its target held, of this
    very spec. ``has_workloads``: objects of the release with pods are there.
    """

    key: RunKey
    created_at_s: float
    plan: ReleasePlan
    record: ReleaseRecord
    is_deleting: bool = False
    is_finalized: bool = True
    is_suspended: bool = False
    is_idle: bool = False
    completed_at_s: float | None = None
    failed_at_s: float = 0.0
    applied_at_s: float = 0.0
    restarted_at_s: float = 0.0
    ttl_s: float | None = None
    workloads: tuple[WorkloadState, ...] = ()
    job: JobInFlight | None = None

    @property
    def replicas(self) -> dict[str, int]:
        """The numbers that are wanted now, by workload."""
        return {each.name: each.replicas for each in self.workloads}

    @property
    def is_complete(self) -> bool:
        """Whether it reached its target, and no change of its spec waits to be applied."""
        return self.completed_at_s is not None and self.record.digest == self.plan.digest


class AddFinalizer(msgspec.Struct, frozen=True, tag=True):
    """Before anything is made: a deletion then waits until it is removed again."""


class RemoveFinalizer(msgspec.Struct, frozen=True, tag=True):
    """Nothing of the run is left: let the deletion end."""


class ApplyRelease(msgspec.Struct, frozen=True, tag=True):
    """Hold the workloads that are there, then install or upgrade the release."""

    hold: tuple[WorkloadState, ...] = ()


class UninstallRelease(msgspec.Struct, frozen=True, tag=True):
    """Remove the release, and what hooks of the chart left."""


class StopJob(msgspec.Struct, frozen=True, tag=True):
    """End helm's work for the run, which something else has replaced: what it did stays, and the next helm goes on."""


class ScaleWorkload(msgspec.Struct, frozen=True, tag=True):
    """Set the number of pods of a workload."""

    workload: ScaledWorkload
    replicas: int


class LetRestart(msgspec.Struct, frozen=True, tag=True):
    """It is the turn of this workload: its pods get the new revision."""

    workload: WorkloadState


Action: TypeAlias = (
    AddFinalizer | RemoveFinalizer | ApplyRelease | UninstallRelease | StopJob | ScaleWorkload | LetRestart
)


class RunStep(msgspec.Struct, frozen=True):
    """The record of a run after a decision, and what to do. ``verdict``: of the quotas, None where it asks nothing."""

    record: ReleaseRecord
    actions: tuple[Action, ...] = ()
    verdict: QuotaVerdict | None = None


def decide(
    observed: Sequence[RunObservation],
    config: OperatorConfig,
    *,
    now_s: float,
    chart: str,
    absent: Sequence[QuotaDemand] = (),
) -> dict[RunKey, RunStep]:
    """A step for each run. ``absent``: what runs hold that could not be read this time."""
    verdicts = judge([*absent, *(demand_of(each, config, now_s=now_s) for each in observed)], config.quota)
    steps = dict[RunKey, RunStep]()
    for each in observed:
        verdict = verdicts.get(each.key)
        step = _step(each, verdict, config, now_s=now_s, chart=chart)
        steps[each.key] = msgspec.structs.replace(step, verdict=verdict)
    return steps


def gives_back(before: ReleaseRecord, after: ReleaseRecord) -> bool:
    """Whether a run leaves some of the quotas to others.

    Its record is written before theirs: else a leader that ends between the two would leave both with it.
    """
    return (before.admitted and not after.admitted) or before.gpus > after.gpus


def takes_more(before: ReleaseRecord, after: ReleaseRecord) -> bool:
    """Whether a run takes of the quotas what it did not have."""
    return (after.admitted and not before.admitted) or after.gpus > before.gpus


def demand_of(run: RunObservation, config: OperatorConfig, *, now_s: float) -> QuotaDemand:
    """What a run holds of the quotas, and what it asks for. Only a run that could start now asks for anything."""
    record, plan = run.record, run.plan
    has_place = record.admitted and not run.is_complete
    granted = record.gpus if has_place else 0
    if has_place and record.digest == plan.digest and not record.replicas:
        granted = max(granted, plan.gpus(run.replicas))
    asks = (
        plan.digest
        and not run.is_deleting
        and not run.is_suspended
        and not run.is_complete
        and plan.digest not in (record.refused, record.expired)
        and not _is_failing(run, config, now_s=now_s)
    )
    wanted = plan.gpus({})
    if record.digest == plan.digest:
        wanted = max(wanted, granted)
    return QuotaDemand(
        run.key, run.created_at_s, wanted if asks else None, has_place=has_place, granted=granted
    )


def _step(
    run: RunObservation, verdict: QuotaVerdict | None, config: OperatorConfig, *, now_s: float, chart: str
) -> RunStep:
    if run.is_complete:
        # Its quotas are others' from now on (`demand_of`), whatever is done with it.
        run = msgspec.structs.replace(run, record=_with(run.record, admitted=False, gpus=0))
    record, plan = run.record, run.plan
    if run.is_deleting:
        return _delete(run)
    if not run.is_finalized:
        return RunStep(record, (AddFinalizer(),))
    if run.job is not None:
        return _wait_for_job(run)
    if plan.problem:
        return RunStep(_with(record, state="Refused", message=plan.problem))
    if record.expired == plan.digest:
        return RunStep(_with(record, state="Expired", admitted=False, gpus=0))
    ended_at_s = _ended_at_s(run)
    if run.ttl_s is not None and ended_at_s is not None and now_s >= ended_at_s + run.ttl_s:
        return _expire(run)
    if run.is_suspended:
        return _suspend(run)
    if run.is_complete:
        return RunStep(_with(record, state="Installed", message="", replicas={}))
    if record.refused == plan.digest:
        return RunStep(_with(record, state="Refused", admitted=bool(record.digest)))
    if _is_failing(run, config, now_s=now_s):
        return RunStep(_with(record, state="Failed", admitted=bool(record.digest)))
    if verdict is None or not verdict.fits:
        return RunStep(_with(record, state="Queued", message=verdict.message if verdict is not None else ""))
    wanted = plan.gpus({})
    if record.admitted and record.digest != plan.digest:
        wanted = max(wanted, record.gpus)  # the old release works until helm has applied the new one
    record = _with(record, admitted=True, gpus=wanted, run_id=plan.run_id)
    run = msgspec.structs.replace(run, record=record)
    gone = record.exists and not run.workloads
    if record.digest != plan.digest or gone:
        return _apply(run, chart=chart)
    return _go_on(run, config, now_s=now_s)


def _is_failing(run: RunObservation, config: OperatorConfig, *, now_s: float) -> bool:
    """Whether helm failed for this spec, and the next attempt is not due."""
    record = run.record
    return record.failed == run.plan.digest != "" and now_s < run.failed_at_s + config.helm.retry_s


def _with(record: ReleaseRecord, **changes: object) -> ReleaseRecord:
    return msgspec.structs.replace(record, **changes)


def _delete(run: RunObservation) -> RunStep:
    record = run.record
    if not run.is_finalized:
        return RunStep(record)
    if run.job is not None:
        stop = (StopJob(),) if run.job.kind == "apply" else ()
        return RunStep(_with(record, state="Uninstalling", message=""), stop)
    if record.exists:
        return RunStep(_with(record, state="Uninstalling", message=""), (UninstallRelease(),))
    if run.workloads:
        return RunStep(_with(record, state="Uninstalling", message="pods end"))
    return RunStep(record, (RemoveFinalizer(),))


def _wait_for_job(run: RunObservation) -> RunStep:
    """Helm works; it is ended where something else is wanted by now."""
    job, record = run.job, run.record
    assert job is not None
    if job.kind == "uninstall":
        return RunStep(_with(record, state="Uninstalling"))
    stop = job.digest != run.plan.digest or (run.is_suspended and not record.digest)
    return RunStep(_with(record, state="Applying"), (StopJob(),) if stop else ())


def _ended_at_s(run: RunObservation) -> float | None:
    """When the run ended, by reaching its target or by failing; None while it works."""
    record, digest = run.record, run.plan.digest
    if run.is_complete and run.completed_at_s is not None:
        return max(run.completed_at_s, run.applied_at_s + GRACE_S)
    if digest and digest in (record.refused, record.failed) and not record.digest:
        return run.failed_at_s
    return None


def _expire(run: RunObservation) -> RunStep:
    """Uninstall, and keep the TrainingRun: one that Git declares would be created again, and train again."""
    record = run.record
    if record.exists:
        return RunStep(_with(record, state="Uninstalling", message=""), (UninstallRelease(),))
    if run.workloads:
        return RunStep(_with(record, state="Uninstalling", message="pods end"))
    ended = "its target holds" if run.is_complete else record.message
    return RunStep(
        _with(
            record,
            state="Expired",
            message=f"uninstalled {run.ttl_s:.0f} s after its end: {ended}",
            expired=run.plan.digest,
            digest="",
            admitted=False,
            gpus=0,
            replicas={},
        )
    )


def _suspend(run: RunObservation) -> RunStep:
    """Nothing is started; what works is scaled to 0 once nothing is in flight, actors before the learner."""
    record, plan = run.record, run.plan
    if not record.exists:
        return RunStep(_with(record, state="Suspended", message="", admitted=False, gpus=0))
    waits = "; the changed spec is applied when it resumes" if record.digest != plan.digest else ""
    if run.is_complete:
        return RunStep(_with(record, state="Installed", message=""))
    working = [(each, count) for each in plan.scaled if (count := run.replicas.get(each.name, 0)) > 0]
    if not working:
        gone = _with(record, state="Suspended", message=f"its pods are at 0{waits}", gpus=0)
        return RunStep(gone)
    if not run.is_idle and plan.reads_run:
        return RunStep(_with(record, state="Suspending", message=f"work in flight is finished{waits}"))
    first = [pair for pair in working if not pair[0].is_last] or working
    kept = {**record.replicas, **{each.name: count for each, count in working}}
    actions = tuple(ScaleWorkload(each, 0) for each, _ in first)
    return RunStep(_with(record, state="Suspending", message=f"its pods end{waits}", replicas=kept), actions)


def _apply(run: RunObservation, *, chart: str) -> RunStep:
    hold = tuple(each for each in run.workloads if not each.is_held and _can_hold(each))
    started = _with(
        run.record, state="Applying", message="", exists=True, chart=chart, expired="", refused="", failed=""
    )
    return RunStep(started, (ApplyRelease(hold),))


def _can_hold(workload: WorkloadState) -> bool:
    return workload.kind in ("Deployment", "StatefulSet")


def _go_on(run: RunObservation, config: OperatorConfig, *, now_s: float) -> RunStep:
    """Restart one service after another, and restore numbers that a suspension took; nothing where all is done."""
    record = run.record
    lost = [(each, record.replicas[each.name]) for each in run.plan.scaled if each.name in record.replicas]
    lost = [(each, count) for each, count in lost if run.replicas.get(each.name, count) == 0]
    if lost:
        actions = tuple(ScaleWorkload(each, count) for each, count in lost)
        return RunStep(_with(record, state="Applying", message="its pods come back"), actions)
    held = in_order(each for each in run.workloads if each.is_held)
    if not held:
        return RunStep(_with(record, state="Installed", message="", failed="", failed_at="", replicas={}))
    waited_for = in_order(each for each in run.workloads if not each.is_held and not each.is_settled)
    if not waited_for:
        message = f"{held[0].name} restarts, {len(held) - 1} others wait"
        turn = _with(record, state="Restarting", message=message, restarted_at=time_text(now_s), replicas={})
        return RunStep(turn, (LetRestart(held[0]),))
    names = ", ".join(each.name for each in waited_for)
    message = f"{names} restarts, {len(held)} others wait"
    if now_s > max(run.restarted_at_s, run.applied_at_s) + config.restart_s:
        stuck = (
            f"{names} is not ready {config.restart_s:.0f} s after its restart; {len(held)} others keep the old "
            "revision. Look at its pods, and change the spec"
        )
        return RunStep(_with(record, state="Failed", message=stuck))
    return RunStep(_with(record, state="Restarting", message=message))
