import json
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import yaml

from tidegate.admission.kubernetes.objects import Meta
from tidegate.admission.kubernetes.training_run import (
    ActorsSpec,
    RunCondition,
    RunObjective,
    RunSnapshot,
    RunSpec,
    RunStatus,
    RunStop,
    ScalingSpec,
    TrainingRun,
    beyond_run_file,
    conditions_of,
    overrides_of,
    phase_of,
    status_of,
)
from tidegate.admission.scaling import ClusterView, Overrides, Scaling
from tidegate.core.admission import Limits
from tidegate.core.balance import Signals
from tidegate.core.scaling import Recommendation, ScalingConfig
from tidegate.core.slo import Slo, Verdict

ROOT = Path(__file__).parents[4]
LIMITS = Limits(max_lag=4, batch_size=2, max_running=8)
WORKING = RunSnapshot(
    signals=Signals(num_actors=2, num_learners=1, running=3.0, lag_mean=1.25, lag_max=3.0),
    limits=LIMITS,
    version="main@7",
    replicas=2,
    ready=2,
    selector="app=actor",
    mode="controller",
    recommendation=Recommendation(3, "actor-bound", 3),
)


def states(moment: RunSnapshot) -> dict[str, str]:
    return {condition.type: condition.status for condition in conditions_of(moment)}


def reason(moment: RunSnapshot, kind: str) -> str:
    return next(condition.reason for condition in conditions_of(moment) if condition.type == kind)


def verdict(name: str, condition: str, budget_left: float = 0.5) -> Verdict:
    return Verdict(
        slo=Slo(name, bound=4.0, target=0.95, window_s=600.0),
        condition=condition,  # pyright: ignore[reportArgumentType] -- parametrised by name
        value=1.0,
        good=1.0,
        bad=0.0,
        missing=0.0,
        budget_left=budget_left,
        burn_long=0.0,
        burn_short=0.0,
    )


def test_no_training_run_asks_for_nothing() -> None:
    assert overrides_of(None, version_step=3) == Overrides()
    assert overrides_of(TrainingRun(Meta(name="t")), version_step=3) == Overrides()


def test_a_spec_becomes_what_is_asked() -> None:
    spec = RunSpec(
        suspend=True,
        objective=RunObjective(2),
        actors=ActorsSpec(replicas=5, min=1, max=6, scaling=ScalingSpec("controller")),
    )
    overrides = overrides_of(TrainingRun(Meta(name="t"), spec), version_step=3)
    assert "t is suspended" in overrides.pause
    asked = (
        overrides.max_lag,
        overrides.replicas,
        overrides.min_replicas,
        overrides.max_replicas,
        overrides.mode,
    )
    assert asked == (2, 5, 1, 6, "controller")


def test_a_run_is_complete_with_the_last_version_asked_for() -> None:
    run = TrainingRun(Meta(name="t"), RunSpec(stop=RunStop(10)))
    assert overrides_of(run, version_step=9).pause == ""
    assert "complete" in overrides_of(run, version_step=10).pause


@pytest.mark.parametrize(
    ("overrides", "bounds"),
    [
        (Overrides(), (2, 8)),
        (Overrides(min_replicas=4, max_replicas=6), (4, 6)),
        (Overrides(max_replicas=99), (2, 8)),
        (Overrides(min_replicas=20), (8, 8)),
        (Overrides(max_replicas=1), (1, 1)),
    ],
)
def test_declared_bounds_stay_inside_the_run_files(overrides: Overrides, bounds: tuple[int, int]) -> None:
    scaling = Scaling(ScalingConfig(min_replicas=2, max_replicas=8))
    scaling.cluster = ClusterView(overrides=overrides)
    assert (scaling.config.min_replicas, scaling.config.max_replicas) == bounds


def test_a_working_run_is_ready() -> None:
    found = states(WORKING)
    assert found["Ready"] == found["LearnerAvailable"] == found["ActorsAvailable"] == "True"
    assert found["WeightsCurrent"] == found["ScalingActive"] == "True"
    assert (
        found["Suspended"] == found["Suspending"] == found["Backpressured"] == found["Completed"] == "False"
    )
    assert found["StalenessWithinSLO"] == "Unknown"
    assert phase_of(WORKING) == "Running"


def test_zero_actors_is_no_failure_and_is_called_so() -> None:
    none = msgspec.structs.replace(
        WORKING, replicas=0, signals=msgspec.structs.replace(WORKING.signals, num_actors=0)
    )
    assert reason(none, "ActorsAvailable") == "NoActors"
    assert states(none)["WeightsCurrent"] == "Unknown"
    assert reason(msgspec.structs.replace(none, replicas=2), "ActorsAvailable") == "NotReporting"


def test_suspending_ends_when_nothing_is_under_way() -> None:
    paused = msgspec.structs.replace(
        WORKING, limits=msgspec.structs.replace(LIMITS, paused=True, reason="night")
    )
    assert (phase_of(paused), states(paused)["Suspending"], states(paused)["Suspended"]) == (
        "Suspending",
        "True",
        "False",
    )
    at_rest = msgspec.structs.replace(paused, signals=msgspec.structs.replace(WORKING.signals, running=0.0))
    assert (phase_of(at_rest), states(at_rest)["Suspending"], states(at_rest)["Suspended"]) == (
        "Suspended",
        "False",
        "True",
    )


@pytest.mark.parametrize(
    ("condition", "status"),
    [("ok", "True"), ("burning", "False"), ("breached", "False"), ("no_data", "Unknown")],
)
def test_staleness_condition_follows_the_objectives(condition: str, status: str) -> None:
    moment = msgspec.structs.replace(
        WORKING, verdicts=(verdict("lag_p95", condition), verdict("waste_ratio", "breached"))
    )
    assert states(moment)["StalenessWithinSLO"] == status


def test_scaling_is_not_active_beside_another_autoscaler_or_without_the_right_to() -> None:
    assert (
        reason(msgspec.structs.replace(WORKING, conflicts=("hpa/x",)), "ScalingActive") == "ConflictingScaler"
    )
    assert reason(msgspec.structs.replace(WORKING, denied="403"), "ScalingActive") == "AccessDenied"
    assert reason(msgspec.structs.replace(WORKING, mode="observe"), "ScalingActive") == "Observing"
    external = msgspec.structs.replace(WORKING, mode="external", conflicts=("hpa/keda",))
    assert reason(external, "ScalingActive") == "ExternalScaler"


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    ready = RunCondition("Ready", "True", "Working", last_transition_time="2020-01-01T00:00:00Z")
    learner = RunCondition(
        "LearnerAvailable", "False", "NotReporting", last_transition_time="2020-01-01T00:00:00Z"
    )
    run = TrainingRun(Meta(name="t", generation=3), status=RunStatus([ready, learner]))
    status = cast("Any", status_of(run, WORKING, conditions_of(WORKING), wall_s=1_700_000_000.0))
    times = {condition["type"]: condition["lastTransitionTime"] for condition in status["conditions"]}
    assert times["Ready"] == "2020-01-01T00:00:00Z"
    assert times["LearnerAvailable"] == "2023-11-14T22:13:20Z"
    assert {condition["observedGeneration"] for condition in status["conditions"]} == {3}


def test_of_a_managed_run_the_observed_generation_is_the_operators() -> None:
    alone = status_of(TrainingRun(Meta(name="t", generation=3)), WORKING, [], wall_s=0.0)
    managed = status_of(TrainingRun(Meta(name="t", generation=3), RunSpec(run={})), WORKING, [], wall_s=0.0)
    assert alone["observedGeneration"] == 3
    assert alone == {**managed, "observedGeneration": 3}


def test_what_is_unknown_is_left_out_of_what_is_applied() -> None:
    unknown = msgspec.structs.replace(WORKING, recommendation=None, replicas=None)
    written = cast("Any", status_of(TrainingRun(Meta(name="t")), unknown, [], wall_s=0.0))
    assert "errorBudgetRemaining" not in written
    assert {"replicas", "recommended", "reason"}.isdisjoint(written["actors"])
    assert written["actors"]["ready"] == 2


def test_a_suspended_run_whose_pods_are_gone_is_as_it_was_asked_for() -> None:
    signals = Signals(num_actors=0, num_learners=0, running=0.0)
    paused = msgspec.structs.replace(LIMITS, paused=True, reason="suspended")
    gone = msgspec.structs.replace(WORKING, signals=signals, limits=paused, replicas=0, suspended=True)
    assert (states(gone)["Ready"], reason(gone, "Ready")) == ("True", "Suspended")
    assert (states(gone)["LearnerAvailable"], reason(gone, "LearnerAvailable")) == ("False", "Suspended")
    assert reason(gone, "ActorsAvailable") == "Suspended"
    # Not because of the pause of a person, nor while work is in flight.
    assert states(msgspec.structs.replace(gone, suspended=False))["Ready"] == "False"
    busy = msgspec.structs.replace(gone, signals=Signals(num_actors=0, num_learners=0, running=2.0))
    assert states(busy)["Ready"] == "False"


def test_what_is_written_is_what_the_definition_knows() -> None:
    text = (ROOT / "helm/tidegate/crds/trainingruns.yaml").read_text(encoding="utf-8")
    (version,) = yaml.safe_load(text)["spec"]["versions"]
    known = version["schema"]["openAPIV3Schema"]["properties"]
    moment = msgspec.structs.replace(WORKING, verdicts=(verdict("lag_max", "ok"),))
    written = status_of(TrainingRun(Meta(name="t")), moment, conditions_of(moment), wall_s=0.0)
    _check(json.loads(json.dumps(written)), known["status"], "status")
    spec = RunSpec(actors=ActorsSpec(replicas=1, min=1, max=2), objective=RunObjective(1), stop=RunStop(1))
    _check(msgspec.to_builtins(spec), known["spec"], "spec")
    named = {column["name"] for column in version["additionalPrinterColumns"]}
    assert named == {
        *(
            "Phase",
            "Release",
            "Version",
            "P95Stale",
            "Budget",
            "Ready",
            "Desired",
            "Accepted",
            "Owner",
            "Age",
        ),
        *("GPUs", "Message"),
    }


def test_training_run_that_no_release_reads_says_so_from_the_start() -> None:
    text = (ROOT / "helm/tidegate/crds/trainingruns.yaml").read_text(encoding="utf-8")
    (version,) = yaml.safe_load(text)["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    _check(status["default"], status, "status")
    (waiting,) = msgspec.convert(status["default"], RunStatus).conditions
    assert (waiting.type, waiting.status, waiting.reason) == ("Accepted", "Unknown", "NoRelease")
    assert "crd.enabled" in waiting.message
    run = TrainingRun(Meta(name="t"), status=RunStatus([waiting]))
    written = cast("Any", status_of(run, WORKING, conditions_of(WORKING), wall_s=1_700_000_000.0))
    (accepted,) = (each for each in written["conditions"] if each["type"] == "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("True", "WithinRunFile")
    assert accepted["lastTransitionTime"] == "2023-11-14T22:13:20Z"


@pytest.mark.parametrize(
    ("spec", "sentences"),
    [
        (RunSpec(), []),
        (RunSpec(objective=RunObjective(4), actors=ActorsSpec(min=0, max=8, replicas=8)), []),
        (RunSpec(objective=RunObjective(99)), ["maxStalenessVersions 99 is above", "4 is in force"]),
        (RunSpec(actors=ActorsSpec(max=20)), ["actors.max 20 is above", "8 is in force"]),
        (RunSpec(actors=ActorsSpec(min=9)), ["actors.min 9 is above the most actors: 8 is in force"]),
        (
            RunSpec(actors=ActorsSpec(replicas=500, max=3)),
            ["replicas 500 is outside of 2 to 3: 3 is in force"],
        ),
        (RunSpec(actors=ActorsSpec(replicas=1)), ["replicas 1 is outside of 2 to 8: 2 is in force"]),
        (
            RunSpec(objective=RunObjective(5), actors=ActorsSpec(max=20, replicas=30)),
            ["maxStalenessVersions 5", "actors.max 20", "actors.replicas 30 is outside of 2 to 8"],
        ),
    ],
)
def test_spec_beyond_the_run_file_is_told_with_what_is_in_force(spec: RunSpec, sentences: list[str]) -> None:
    scaling = ScalingConfig(min_replicas=2, max_replicas=8)
    beyond = beyond_run_file(TrainingRun(Meta(name="t"), spec), 4, scaling)
    moment = msgspec.structs.replace(WORKING, beyond=beyond)
    (accepted,) = (each for each in conditions_of(moment) if each.type == "Accepted")
    assert accepted.status == ("False" if sentences else "True")
    assert accepted.reason == ("BeyondRunFile" if sentences else "WithinRunFile")
    assert all(sentence in accepted.message for sentence in sentences)
    # What is said to be in force is what scaling does.
    steered = Scaling(scaling)
    steered.cluster = ClusterView(overrides=overrides_of(TrainingRun(Meta(name="t"), spec), version_step=0))
    if any("actors.max" in sentence for sentence in sentences):
        assert steered.config.max_replicas == 8
    if spec.actors.replicas is not None and sentences:
        assert f"{steered.config.clamp(spec.actors.replicas)} is in force" in accepted.message


def _check(value: Any, schema: dict[str, Any], where: str) -> None:
    """Every field has a place in the schema, of its type."""
    match schema["type"]:
        case "object":
            for name, inner in value.items():
                assert name in schema["properties"], f"{where}.{name}"
                if inner is not None:
                    _check(inner, schema["properties"][name], f"{where}.{name}")
        case "array":
            for item in value:
                _check(item, schema["items"], where)
        case kind:
            python = {"string": str, "integer": int, "boolean": bool}[kind]
            assert isinstance(value, python), f"{where}: {value!r}"
            assert value in schema.get("enum", [value]), f"{where}: {value!r}"
