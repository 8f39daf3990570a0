"""The operator's part of a TrainingRun's status: its conditions, in the convention of kstatus. Pure.

Admission owns its conditions (Ready, Suspended, Completed and so on), phase and numbers; the operator owns the four
below, ``release`` and ``observedGeneration``. Each applies its part server-side under a name of its own, so neither
overwrites the other's. A reader by kstatus (Flux, ``kubectl wait``) sees failed while Stalled is true, in progress
while Reconciling is true or Ready is not, else current.
"""

from typing import Any

import msgspec

from tidegate.admission.kubernetes.training_run import KIND, RunCondition, condition, dated
from tidegate.operator.decisions import RunStep
from tidegate.operator.objects import API_VERSION, ManagedRun, ReleaseRecord
from tidegate.operator.plans import ReleasePlan

ADMITTED, RELEASED, RECONCILING, STALLED = "Admitted", "Released", "Reconciling", "Stalled"
MESSAGE_CHARS_MAX = 2000
# States in which the operator has nothing more to do by itself.
AT_REST = ("Installed", "Suspended", "Expired")
FAILED = ("Refused", "Failed")
_REASONS = {
    "Pending": "Observed",
    "Queued": "QuotaExceeded",
    "Applying": "HelmWorks",
    "Restarting": "ServicesRestart",
    "Installed": "Installed",
    "Suspending": "Suspending",
    "Suspended": "Suspended",
    "Refused": "RunRefused",
    "Failed": "HelmFailed",
    "Uninstalling": "Uninstalling",
    "Expired": "Expired",
}


def conditions_of(run: ManagedRun, plan: ReleasePlan, step: RunStep) -> list[RunCondition]:
    """The operator's conditions, always in this order, without times."""
    record = step.record
    reason, message = _REASONS[record.state], record.message[:MESSAGE_CHARS_MAX]
    if record.state == "Failed" and record.failed != plan.digest:
        reason = "RestartStuck"
    refused = record.refused == plan.digest != "" or bool(plan.problem)
    never = step.verdict is not None and step.verdict.never
    stalled = record.state in FAILED or refused or (record.state == "Queued" and never)
    ready = run.condition("Ready")
    is_ready = ready is not None and ready.status != "Unknown" and ready.last_transition_time != ""
    working = record.state not in AT_REST
    starting = record.state == "Installed" and plan.reads_run and not is_ready
    return [
        _admitted(record, step),
        condition(
            RELEASED,
            is_true=bool(record.digest) and record.digest == plan.digest and record.state not in FAILED,
            reason=reason,
            message=message,
        ),
        condition(
            RECONCILING,
            is_true=(working or starting) and not stalled,
            reason="WaitsForAdmission" if starting else reason,
            message=message if not stalled else "",
        ),
        condition(
            STALLED,
            is_true=stalled,
            reason=("QuotaImpossible" if never and record.state == "Queued" else reason)
            if stalled
            else "Progressing",
            message=message if stalled else "",
        ),
    ]


def _admitted(record: ReleaseRecord, step: RunStep) -> RunCondition:
    """Whether the run has its place in the quotas."""
    if step.verdict is not None and not step.verdict.fits:
        reason = "QuotaImpossible" if step.verdict.never else "QuotaExceeded"
        return RunCondition(ADMITTED, "False", reason, step.verdict.message[:MESSAGE_CHARS_MAX])
    if record.admitted:
        return RunCondition(ADMITTED, "True", "WithinQuota", f"{record.gpus} GPUs" if record.gpus else "")
    return RunCondition(ADMITTED, "False", "NotAsking", f"the release is {record.state}")


def applied_status(run: ManagedRun, plan: ReleasePlan, step: RunStep, *, wall_s: float) -> dict[str, Any]:
    """The body of a server-side apply of the status. A condition keeps its time while its status stays."""
    meta = run.metadata
    release: dict[str, Any] = msgspec.to_builtins(step.record)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "status": {
            "observedGeneration": meta.generation,
            "release": {"state": step.record.state, **release},
            "conditions": dated(
                conditions_of(run, plan, step),
                run.status.conditions,
                generation=meta.generation,
                wall_s=wall_s,
            ),
        },
    }


def is_written(run: ManagedRun, body: dict[str, Any]) -> bool:
    """Whether the status has all of it already."""
    status = body["status"]
    conditions = {each.type: msgspec.to_builtins(each) for each in run.status.conditions}
    return (
        run.status.observed_generation == status["observedGeneration"]
        and {"state": run.status.release.state, **msgspec.to_builtins(run.status.release)}
        == status["release"]
        and all(conditions.get(each["type"]) == each for each in status["conditions"])
    )
