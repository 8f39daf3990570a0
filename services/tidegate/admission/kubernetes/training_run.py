"""The TrainingRun: the overrides of its spec, and its status and conditions. Pure functions.

A spec narrows the run file and never widens it; fields that it omits, and every field without a TrainingRun, keep the
run file's values.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, cast

import msgspec

from tidegate.admission.kubernetes.objects import Meta
from tidegate.admission.scaling import NO_OVERRIDES, Overrides
from tidegate.core.admission import Limits
from tidegate.core.balance import Signals
from tidegate.core.pauses import TRAINING_RUN
from tidegate.core.scaling import Mode, Recommendation, ScalingConfig
from tidegate.core.slo import Verdict

GROUP, VERSION, PLURAL, KIND = "tidegate.dev", "v1alpha1", "trainingruns", "TrainingRun"
LAG_OBJECTIVES = ("lag_p95", "lag_max")
BROKEN = ("burning", "breached")
# The condition of a run that ended at its target, and the reason of others that follow from it.
COMPLETED = "Completed"
# The reason of conditions that follow from `spec.suspend`, once the learner is at 0 as well.
AT_ZERO = "Suspended"


class RunObjective(msgspec.Struct, frozen=True, rename="camel"):
    """``max_staleness_versions``: a budget inside of the run file's ``staleness.max_lag``."""

    max_staleness_versions: int | None = None


class ScalingSpec(msgspec.Struct, frozen=True):
    """``mode`` replaces ``admission.scaling.mode``."""

    mode: Mode | None = None


class ActorsSpec(msgspec.Struct, frozen=True):
    """Bounds inside of the run file's; ``replicas`` declares the number instead of measuring it."""

    replicas: int | None = None
    min: int | None = None
    max: int | None = None
    scaling: ScalingSpec = ScalingSpec()


class RunStop(msgspec.Struct, frozen=True, rename="camel"):
    """``max_versions``: admission pauses once the learner has published this many."""

    max_versions: int | None = None


class RunSpec(msgspec.Struct, frozen=True):
    """The declared overrides. ``run``: the run file, where `tidegate operator` makes the release; not read here."""

    suspend: bool = False
    run: dict[str, Any] | None = None
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
    """The conditions of the last written status, to keep the times of those that did not change."""

    conditions: list[RunCondition] = []


class TrainingRun(msgspec.Struct, frozen=True):
    """``tidegate.dev/v1alpha1``."""

    metadata: Meta
    spec: RunSpec = RunSpec()
    status: RunStatus = RunStatus()


class RunSnapshot(msgspec.Struct, frozen=True):
    """The state of the run from which status and conditions are derived.

    ``replicas`` wanted, None while no Deployment can be read; ``ready`` and ``draining`` pods. ``conflicts``:
    autoscalers of the same Deployment. ``denied``: why the API server denies scaling, "" while it does not.
    ``beyond``: what the spec asks for and the run file does not allow, a sentence each. ``target``: that the run
    reached. ``suspended``: by ``spec.suspend``.
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
    beyond: tuple[str, ...] = ()
    completed: bool = False
    target: str = ""
    suspended: bool = False


def overrides_of(run: TrainingRun | None, *, version_step: int) -> Overrides:
    """The overrides of a spec. ``version_step``: of the learner's newest version."""
    if run is None:
        return NO_OVERRIDES
    spec, name = run.spec, run.metadata.name
    pause = ""
    if is_completed(run, version_step=version_step):
        pause = f"{TRAINING_RUN} {name} is complete: {spec.stop.max_versions} versions"
    elif spec.suspend:
        pause = f"{TRAINING_RUN} {name} is suspended (spec.suspend)"
    return Overrides(
        pause=pause,
        max_lag=spec.objective.max_staleness_versions,
        mode=spec.actors.scaling.mode,
        min_replicas=spec.actors.min,
        max_replicas=spec.actors.max,
        replicas=spec.actors.replicas,
    )


def beyond_run_file(run: TrainingRun | None, max_lag: int, scaling: ScalingConfig) -> tuple[str, ...]:
    """What a spec asks for beyond the run file (``max_lag``, ``scaling``), and what is in force instead."""
    if run is None:
        return ()
    asked, found = run.spec.actors, list[str]()
    lag = run.spec.objective.max_staleness_versions
    if lag is not None and lag > max_lag:
        found.append(
            f"objective.maxStalenessVersions {lag} is above the run file's staleness.max_lag: {max_lag} is in force"
        )
    most = scaling.max_replicas
    if asked.max is not None and asked.max > most:
        found.append(f"actors.max {asked.max} is above admission.scaling.max_replicas: {most} is in force")
    high = most if asked.max is None else min(asked.max, most)
    if asked.min is not None and asked.min > high:
        found.append(f"actors.min {asked.min} is above the most actors: {high} is in force")
    low = min(scaling.min_replicas if asked.min is None else asked.min, high)
    if asked.replicas is not None and not low <= asked.replicas <= high:
        nearest = max(low, min(asked.replicas, high))
        found.append(f"actors.replicas {asked.replicas} is outside of {low} to {high}: {nearest} is in force")
    return tuple(found)


def is_completed(run: TrainingRun, *, version_step: int) -> bool:
    """Whether the run made ``spec.stop.maxVersions`` versions."""
    return run.spec.stop.max_versions is not None and version_step >= run.spec.stop.max_versions


def conditions_of(snapshot: RunSnapshot) -> list[RunCondition]:
    """All conditions, always in this order."""
    signals, limits = snapshot.signals, snapshot.limits
    idle = signals.running <= 0.0
    learner = signals.num_learners > 0
    actors = signals.num_actors > 0
    # The operator of a managed run scaled actors and learner to 0.
    at_zero = snapshot.suspended and limits.paused and idle and not learner
    at_rest = COMPLETED if snapshot.completed else AT_ZERO if at_zero else ""
    working = learner and (actors or limits.paused)
    return [
        condition(
            "Ready",
            is_true=working or bool(at_rest),
            reason=at_rest or ("Working" if working else "LearnerUnavailable" if not learner else "NoActors"),
        ),
        _staleness(snapshot),
        condition(
            "Backpressured",
            is_true=snapshot.bottleneck == "store" or (bool(limits.reason) and not limits.paused),
            reason="StoreBehind" if snapshot.bottleneck == "store" or limits.reason else "Flowing",
            message="" if limits.paused else limits.reason,
        ),
        RunCondition("WeightsCurrent", "Unknown", "NoActors")
        if not actors
        else condition(
            "WeightsCurrent",
            is_true=signals.publish_lag <= limits.max_lag,
            reason="WithinBudget" if signals.publish_lag <= limits.max_lag else "ActorsBehind",
            message="the slowest actor serves a policy outside of the budget"
            if signals.publish_lag > limits.max_lag
            else "",
        ),
        condition(
            "LearnerAvailable",
            is_true=learner,
            reason="Reporting" if learner else at_rest or "NotReporting",
        ),
        condition(
            "ActorsAvailable",
            is_true=actors,
            reason="Reporting"
            if actors
            else at_rest or ("NoActors" if snapshot.replicas == 0 else "NotReporting"),
            message="scaled to 0: a pause; scale to 1 or more to go on"
            if snapshot.replicas == 0 and not at_rest
            else "",
        ),
        _scaling(snapshot),
        condition(
            "Suspending",
            is_true=limits.paused and not idle,
            reason="FinishingWork" if limits.paused and not idle else "NothingUnderWay",
        ),
        condition(
            "Suspended",
            is_true=limits.paused and idle,
            reason="Paused" if limits.paused else "Admitting",
            message=limits.reason if limits.paused else "",
        ),
        condition(
            COMPLETED,
            is_true=snapshot.completed,
            reason=("TargetReached" if snapshot.target else "MaxVersions")
            if snapshot.completed
            else "Running",
            message=f"{snapshot.target} holds" if snapshot.completed and snapshot.target else "",
        ),
        condition(
            "Accepted",
            is_true=not snapshot.beyond,
            reason="BeyondRunFile" if snapshot.beyond else "WithinRunFile",
            message="; ".join(snapshot.beyond),
        ),
    ]


def status_of(
    run: TrainingRun, snapshot: RunSnapshot, conditions: list[RunCondition], *, wall_s: float
) -> dict[str, object]:
    """Admission's part of the status, as a server-side apply has it: what is unknown is left out.

    Of a managed run ``observedGeneration`` is the operator's, who acts on the whole spec.
    """
    signals, made = snapshot.signals, snapshot.recommendation
    budgets = [verdict.budget_left for verdict in snapshot.verdicts if verdict.slo.name in LAG_OBJECTIVES]
    own = {} if run.spec.run is not None else {"observedGeneration": run.metadata.generation}
    return _known(
        own
        | {
            "phase": phase_of(snapshot),
            "policyVersion": snapshot.version,
            "staleness": {
                "mean": _short(signals.lag_mean),
                "p95": _short(snapshot.lag_p95),
                "max": round(signals.lag_max),
                "budget": snapshot.limits.max_lag,
            },
            "errorBudgetRemaining": f"{max(0.0, min(budgets)):.0%}" if budgets else None,
            "queue": round(signals.available),
            "inFlight": round(signals.in_flight),
            "bottleneck": snapshot.bottleneck,
            "actors": {
                "replicas": snapshot.replicas,
                "ready": snapshot.ready,
                "reporting": signals.num_actors,
                "draining": snapshot.draining,
                "selector": snapshot.selector,
                "recommended": made.replicas if made is not None else None,
                "reason": made.reason if made is not None else None,
                "scaleOwner": snapshot.scale_owner,
            },
            "lastCheckpoint": snapshot.checkpoint,
            "conditions": dated(
                conditions, run.status.conditions, generation=run.metadata.generation, wall_s=wall_s
            ),
        }
    )


def _known(values: Mapping[str, object]) -> dict[str, object]:
    """The values without those that are None, in sections too."""
    return {
        key: _known(cast("Mapping[str, object]", value)) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }


def phase_of(snapshot: RunSnapshot) -> str:
    """One word for a list of runs; the conditions have the details."""
    if snapshot.completed:
        return "Completed"
    if snapshot.limits.paused:
        return "Suspended" if snapshot.signals.running <= 0.0 else "Suspending"
    return "Running" if snapshot.version and snapshot.signals.num_learners else "Pending"


def _staleness(snapshot: RunSnapshot) -> RunCondition:
    verdicts = [verdict for verdict in snapshot.verdicts if verdict.slo.name in LAG_OBJECTIVES]
    broken = [verdict for verdict in verdicts if verdict.condition in BROKEN]
    if broken:
        message = "; ".join(f"{verdict.slo.name} is {verdict.condition}" for verdict in broken)
        return RunCondition("StalenessWithinSLO", "False", "ObjectiveBroken", message)
    if not verdicts or all(verdict.condition == "no_data" for verdict in verdicts):
        return RunCondition("StalenessWithinSLO", "Unknown", "NothingTrained")
    return RunCondition("StalenessWithinSLO", "True", "WithinObjective")


def _scaling(snapshot: RunSnapshot) -> RunCondition:
    if snapshot.mode == "observe":
        return RunCondition("ScalingActive", "False", "Observing", "people and autoscalers scale")
    if snapshot.conflicts and snapshot.mode == "controller":
        others = ", ".join(snapshot.conflicts)
        message = f"{others} scales the same Deployment: delete it, or set the mode to external or advise"
        return RunCondition("ScalingActive", "False", "ConflictingScaler", message)
    if snapshot.denied and snapshot.mode == "controller":
        return RunCondition("ScalingActive", "False", "AccessDenied", snapshot.denied)
    reasons = {"advise": "Advising", "external": "ExternalScaler", "controller": "Controlling"}
    message = snapshot.recommendation.reason if snapshot.recommendation is not None else ""
    return condition(
        "ScalingActive", is_true=snapshot.mode != "advise", reason=reasons[snapshot.mode], message=message
    )


def dated(
    conditions: Sequence[RunCondition], before: Sequence[RunCondition], *, generation: int, wall_s: float
) -> list[object]:
    """Conditions of a spec's ``generation`` as they are written; one keeps its time while its status stays."""
    known = {each.type: each for each in before}
    found: list[object] = []
    for each in conditions:
        earlier = known.get(each.type)
        same = earlier is not None and earlier.status == each.status and earlier.last_transition_time
        at = earlier.last_transition_time if earlier is not None and same else time_text(wall_s)
        changed = msgspec.structs.replace(each, last_transition_time=at, observed_generation=generation)
        found.append(msgspec.to_builtins(changed))
    return found


def time_text(wall_s: float) -> str:
    """Seconds since the epoch as RFC 3339."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(type_: str, *, is_true: bool, reason: str, message: str = "") -> RunCondition:
    """A condition without its time."""
    return RunCondition(type_, "True" if is_true else "False", reason, message)


def _short(number: float) -> str:
    """A number as text: Kubernetes' API conventions advise against floats in objects."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
