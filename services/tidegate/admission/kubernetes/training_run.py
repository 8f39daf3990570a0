"""The TrainingRun: what its spec asks of this run, and what its status says. Objects in, objects out.

A spec narrows the run file and never widens it; what it does not say stays as the run file has it, and without a
TrainingRun all of it does.
"""

from datetime import UTC, datetime
from typing import Literal

import msgspec

from tidegate.admission.kubernetes.objects import Meta
from tidegate.admission.scaling import NO_OVERRIDES, Overrides
from tidegate.core.admission import Limits
from tidegate.core.balance import Signals
from tidegate.core.scaling import Mode, Recommendation
from tidegate.core.slo import Verdict

GROUP, VERSION, PLURAL, KIND = "tidegate.dev", "v1alpha1", "trainingruns", "TrainingRun"
LAG_OBJECTIVES = ("lag_p95", "lag_max")
BROKEN = ("burning", "breached")


class RunObjective(msgspec.Struct, frozen=True, rename="camel"):
    """``max_staleness_versions``: a budget inside of the run file's ``staleness.max_lag``."""

    max_staleness_versions: int | None = None


class ScalingSpec(msgspec.Struct, frozen=True):
    """``mode``: in place of ``admission.scaling.mode``."""

    mode: Mode | None = None


class ActorsSpec(msgspec.Struct, frozen=True):
    """Bounds inside of the run file's; ``replicas`` declares the number instead of having it measured."""

    replicas: int | None = None
    min: int | None = None
    max: int | None = None
    scaling: ScalingSpec = ScalingSpec()


class RunStop(msgspec.Struct, frozen=True, rename="camel"):
    """``max_versions``: admission ends once the learner has published so many."""

    max_versions: int | None = None


class RunSpec(msgspec.Struct, frozen=True):
    """What is asked for."""

    suspend: bool = False
    objective: RunObjective = RunObjective()
    actors: ActorsSpec = ActorsSpec()
    stop: RunStop = RunStop()


class RunCondition(msgspec.Struct, frozen=True, rename="camel"):
    """One condition; ``last_transition_time`` is when ``status`` last changed."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class RunStatus(msgspec.Struct, frozen=True):
    """What is read back of a status: the conditions, to keep the times of those that did not change."""

    conditions: list[RunCondition] = []


class TrainingRun(msgspec.Struct, frozen=True):
    """``tidegate.dev/v1alpha1``."""

    metadata: Meta
    spec: RunSpec = RunSpec()
    status: RunStatus = RunStatus()


class RunSnapshot(msgspec.Struct, frozen=True):
    """The run as admission sees it now.

    ``replicas`` asked for, None where no Deployment can be read; ``ready`` and ``draining`` pods. ``conflicts``:
    autoscalers of the same Deployment. ``denied``: what the cluster refuses of scaling, "" while nothing.
    """

    signals: Signals
    limits: Limits
    verdicts: tuple[Verdict, ...] = ()
    bottleneck: str = ""
    version: str = ""
    lag_p95: float = 0.0
    checkpoint: str = ""
    replicas: int | None = None
    ready: int = 0
    draining: int = 0
    selector: str = ""
    mode: Mode = "observe"
    recommendation: Recommendation | None = None
    scale_owner: str = ""
    conflicts: tuple[str, ...] = ()
    denied: str = ""
    completed: bool = False


def overrides_of(run: TrainingRun | None, *, version_step: int) -> Overrides:
    """What is declared. ``version_step``: of the learner's newest version."""
    if run is None:
        return NO_OVERRIDES
    spec, name = run.spec, run.metadata.name
    pause = ""
    if is_completed(run, version_step=version_step):
        pause = f"the TrainingRun {name} is complete: {spec.stop.max_versions} versions"
    elif spec.suspend:
        pause = f"the TrainingRun {name} is suspended (spec.suspend)"
    return Overrides(
        pause=pause,
        max_lag=spec.objective.max_staleness_versions,
        mode=spec.actors.scaling.mode,
        min_replicas=spec.actors.min,
        max_replicas=spec.actors.max,
        replicas=spec.actors.replicas,
    )


def is_completed(run: TrainingRun, *, version_step: int) -> bool:
    """Whether the run made the versions that were asked for."""
    return run.spec.stop.max_versions is not None and version_step >= run.spec.stop.max_versions


def conditions_of(moment: RunSnapshot) -> list[RunCondition]:
    """Every condition, always all of them and in this order."""
    signals, limits = moment.signals, moment.limits
    idle = signals.running <= 0.0
    learner = signals.num_learners > 0
    actors = signals.num_actors > 0
    working = learner and (actors or limits.paused)
    return [
        _condition(
            "Ready",
            is_true=working,
            reason="Working" if working else ("LearnerUnavailable" if not learner else "NoActors"),
        ),
        _staleness(moment),
        _condition(
            "Backpressured",
            is_true=moment.bottleneck == "store" or (bool(limits.reason) and not limits.paused),
            reason="StoreBehind" if moment.bottleneck == "store" or limits.reason else "Flowing",
            message="" if limits.paused else limits.reason,
        ),
        RunCondition("WeightsCurrent", "Unknown", "NoActors")
        if not actors
        else _condition(
            "WeightsCurrent",
            is_true=signals.publish_lag <= limits.max_lag,
            reason="WithinBudget" if signals.publish_lag <= limits.max_lag else "ActorsBehind",
            message="the slowest actor serves a policy outside of the budget"
            if signals.publish_lag > limits.max_lag
            else "",
        ),
        _condition("LearnerAvailable", is_true=learner, reason="Reporting" if learner else "NotReporting"),
        _condition(
            "ActorsAvailable",
            is_true=actors,
            reason="Reporting" if actors else ("NoActors" if moment.replicas == 0 else "NotReporting"),
            message="scaled to 0: a pause; scale to 1 or more to go on" if moment.replicas == 0 else "",
        ),
        _scaling(moment),
        _condition(
            "Suspending",
            is_true=limits.paused and not idle,
            reason="FinishingWork" if limits.paused and not idle else "NothingUnderWay",
        ),
        _condition(
            "Suspended",
            is_true=limits.paused and idle,
            reason="Paused" if limits.paused else "Admitting",
            message=limits.reason if limits.paused else "",
        ),
        _condition(
            "Completed", is_true=moment.completed, reason="MaxVersions" if moment.completed else "Running"
        ),
    ]


def status_of(
    run: TrainingRun, moment: RunSnapshot, conditions: list[RunCondition], *, wall_s: float
) -> dict[str, object]:
    """The whole status, as a merge patch of the subresource takes it."""
    known = {condition.type: condition for condition in run.status.conditions}
    now = datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    dated: list[object] = []
    for condition in conditions:
        before = known.get(condition.type)
        same = before is not None and before.status == condition.status and before.last_transition_time
        dated.append(
            msgspec.to_builtins(
                msgspec.structs.replace(
                    condition,
                    last_transition_time=before.last_transition_time if before is not None and same else now,
                    observed_generation=run.metadata.generation,
                )
            )
        )
    signals, made = moment.signals, moment.recommendation
    budgets = [verdict.budget_left for verdict in moment.verdicts if verdict.slo.name in LAG_OBJECTIVES]
    return {
        "observedGeneration": run.metadata.generation,
        "phase": phase_of(moment),
        "policyVersion": moment.version,
        "staleness": {
            "mean": _short(signals.lag_mean),
            "p95": _short(moment.lag_p95),
            "max": round(signals.lag_max),
            "budget": moment.limits.max_lag,
        },
        "errorBudgetRemaining": f"{max(0.0, min(budgets)):.0%}" if budgets else None,
        "queue": round(signals.available),
        "inFlight": round(signals.in_flight),
        "bottleneck": moment.bottleneck,
        "actors": {
            "replicas": moment.replicas,
            "ready": moment.ready,
            "reporting": signals.num_actors,
            "draining": moment.draining,
            "selector": moment.selector,
            "recommended": made.replicas if made is not None else None,
            "reason": made.reason if made is not None else None,
            "scaleOwner": moment.scale_owner,
        },
        "lastCheckpoint": moment.checkpoint,
        "conditions": dated,
    }


def phase_of(moment: RunSnapshot) -> str:
    """One word for a list of runs; the conditions say more."""
    if moment.completed:
        return "Completed"
    if moment.limits.paused:
        return "Suspended" if moment.signals.running <= 0.0 else "Suspending"
    return "Running" if moment.version and moment.signals.num_learners else "Pending"


def _staleness(moment: RunSnapshot) -> RunCondition:
    verdicts = [verdict for verdict in moment.verdicts if verdict.slo.name in LAG_OBJECTIVES]
    broken = [verdict for verdict in verdicts if verdict.condition in BROKEN]
    if broken:
        said = "; ".join(f"{verdict.slo.name} is {verdict.condition}" for verdict in broken)
        return RunCondition("StalenessWithinSLO", "False", "ObjectiveBroken", said)
    if not verdicts or all(verdict.condition == "no_data" for verdict in verdicts):
        return RunCondition("StalenessWithinSLO", "Unknown", "NothingTrained")
    return RunCondition("StalenessWithinSLO", "True", "WithinObjective")


def _scaling(moment: RunSnapshot) -> RunCondition:
    if moment.mode == "observe":
        return RunCondition("ScalingActive", "False", "Observing", "people and autoscalers scale")
    if moment.conflicts and moment.mode == "controller":
        others = ", ".join(moment.conflicts)
        said = f"{others} scales the same Deployment: delete it, or set the mode to external or advise"
        return RunCondition("ScalingActive", "False", "ConflictingScaler", said)
    if moment.denied and moment.mode == "controller":
        return RunCondition("ScalingActive", "False", "AccessDenied", moment.denied)
    reasons = {"advise": "Advising", "external": "ExternalScaler", "controller": "Controlling"}
    said = moment.recommendation.reason if moment.recommendation is not None else ""
    return _condition(
        "ScalingActive", is_true=moment.mode != "advise", reason=reasons[moment.mode], message=said
    )


def _condition(type_: str, *, is_true: bool, reason: str, message: str = "") -> RunCondition:
    return RunCondition(type_, "True" if is_true else "False", reason, message)


def _short(number: float) -> str:
    """Numbers of a status are text: the API server's types know no fractions that every client reads alike."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
