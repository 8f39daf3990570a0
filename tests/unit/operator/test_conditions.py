"""The operator's part of a status: kstatus, messages, times, and what the definition knows."""

import json
from pathlib import Path
from typing import Any, cast, get_args

import msgspec
import pytest
import yaml

from tidegate.admission.kubernetes.training_run import RunCondition
from tidegate.catalogue.operator import STATES
from tidegate.core.errors import ConfigError
from tidegate.operator.conditions import applied_status, conditions_of, is_written
from tidegate.operator.config import OperatorConfig, read_config
from tidegate.operator.decisions import RunStep
from tidegate.operator.objects import (
    ManagedMeta,
    ManagedRun,
    ManagedSpec,
    ManagedStatus,
    ReleaseRecord,
    State,
)
from tidegate.operator.plans import ReleasePlan
from tidegate.operator.quotas import QuotaVerdict

ROOT = Path(__file__).parents[3]
CRD = ROOT / "helm/tidegate/crds/trainingruns.yaml"
PLAN = ReleasePlan(digest="d1")
DONE = ReleaseRecord(state="Installed", exists=True, digest="d1", admitted=True)
READY = RunCondition("Ready", "True", "Working", "", "2026-01-01T00:00:00Z", 3)


def managed(*conditions: RunCondition, record: ReleaseRecord = DONE) -> ManagedRun:
    status = ManagedStatus(observed_generation=3, conditions=list(conditions), release=record)
    meta = ManagedMeta(name="rl", namespace="space", uid="u", generation=3)
    return ManagedRun(meta, ManagedSpec(run={}), status)


def found(run: ManagedRun, step: RunStep, plan: ReleasePlan = PLAN) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.reason) for each in conditions_of(run, plan, step)}


def kstatus(run: ManagedRun, step: RunStep, plan: ReleasePlan = PLAN) -> str:
    """As cli-utils' kstatus judges an object by its conditions."""
    states = {each.type: each.status for each in run.status.conditions}
    states |= {kind: status for kind, (status, _) in found(run, step, plan).items()}
    if states.get("Stalled") == "True":
        return "Failed"
    if states.get("Reconciling") == "True" or states.get("Ready", "True") != "True":
        return "InProgress"
    return "Current"


def step(state: State, verdict: QuotaVerdict | None = None, **also: Any) -> RunStep:
    return RunStep(msgspec.structs.replace(DONE, state=state, **also), verdict=verdict)


@pytest.mark.parametrize(
    ("state", "also", "judged"),
    [
        ("Queued", {"digest": "", "admitted": False}, "InProgress"),
        ("Applying", {"digest": ""}, "InProgress"),
        ("Restarting", {}, "InProgress"),
        ("Installed", {}, "Current"),
        ("Suspending", {}, "InProgress"),
        ("Suspended", {}, "Current"),
        ("Refused", {"refused": "d1", "digest": ""}, "Failed"),
        ("Failed", {"failed": "d1"}, "Failed"),
        ("Uninstalling", {}, "InProgress"),
        ("Expired", {}, "Current"),
        ("Pending", {}, "InProgress"),
    ],
)
def test_tools_that_read_kstatus_judge_a_run_by_its_state(
    state: State, also: dict[str, Any], judged: str
) -> None:
    assert kstatus(managed(READY), step(state, **also)) == judged


def test_an_installed_run_is_in_progress_until_its_admission_has_said_that_it_is_ready() -> None:
    assert kstatus(managed(), step("Installed")) == "InProgress"
    not_ready = msgspec.structs.replace(READY, status="False")
    assert kstatus(managed(not_ready), step("Installed")) == "InProgress"
    blind = ReleasePlan(digest="d1", reads_run=False)
    assert kstatus(managed(), step("Installed"), blind) == "Current"


def test_what_could_never_fit_is_stalled_and_what_waits_is_not() -> None:
    waits = step("Queued", QuotaVerdict(False, message="2 of 2 runs"), digest="", message="2 of 2 runs")
    assert found(managed(), waits)["Admitted"] == ("False", "QuotaExceeded")
    assert found(managed(), waits)["Stalled"][0] == "False"
    never = step("Queued", QuotaVerdict(False, never=True, message="9 of 4"), digest="", message="9 of 4")
    assert found(managed(), never)["Stalled"] == ("True", "QuotaImpossible")


def test_a_change_that_was_refused_is_stalled_whatever_the_old_release_does() -> None:
    changed = ReleasePlan(digest="d2")
    suspended = step("Suspended", refused="d2")
    assert found(managed(READY), suspended, changed)["Stalled"][0] == "True"
    assert found(managed(READY), suspended, changed)["Released"][0] == "False"


def test_a_condition_keeps_its_time_until_it_changes_and_an_unchanged_status_is_not_written_again() -> None:
    run = managed(READY)
    body = applied_status(run, PLAN, step("Installed"), wall_s=1_700_000_000.0)
    assert not is_written(run, body)
    conditions = msgspec.convert(body["status"]["conditions"], list[RunCondition])
    written = managed(READY, *conditions)
    later = applied_status(written, PLAN, step("Installed"), wall_s=1_800_000_000.0)
    assert is_written(written, later)
    assert later == body
    failed = applied_status(written, PLAN, step("Failed", failed="d1"), wall_s=1_800_000_000.0)
    times = {each["type"]: each["lastTransitionTime"] for each in failed["status"]["conditions"]}
    assert times["Admitted"] == "2023-11-14T22:13:20Z"
    assert times["Stalled"] == "2027-01-15T08:00:00Z"
    assert body["metadata"] == {"name": "rl", "namespace": "space", "uid": "u"}


def test_what_is_written_is_what_the_definition_knows() -> None:
    (version,) = yaml.safe_load(CRD.read_text(encoding="utf-8"))["spec"]["versions"]
    known = version["schema"]["openAPIV3Schema"]["properties"]
    full = ReleaseRecord(
        "Failed", "m", exists=True, digest="a", refused="b", failed="c", expired="d", admitted=True, gpus=1,
        replicas={"rl-actor": 1}, run_id="r", chart="0", applied_at="t", failed_at="t", restarted_at="t",
    )  # fmt: skip
    body = applied_status(managed(), PLAN, RunStep(full), wall_s=0.0)
    release = known["status"]["properties"]["release"]["properties"]
    assert set(body["status"]["release"]) == set(release)
    assert set(body["status"]) <= set(known["status"]["properties"])
    assert release["state"]["enum"] == list(get_args(State)) == list(STATES)
    conditions = known["status"]["properties"]["conditions"]["items"]["properties"]
    assert all(set(each) <= set(conditions) for each in body["status"]["conditions"])
    spec = cast("dict[str, Any]", msgspec.to_builtins(ManagedSpec(run={}, ttl_seconds_after_finished=1)))
    assert set(spec) <= set(known["spec"]["properties"])
    assert json.dumps(body)


def test_configuration_is_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "operator.yaml"
    path.write_text("quota: {total: {runs: 2}}\n")
    assert read_config(path).quota.total.runs == 2
    for text, words in (
        ("qouta: {}\n", "unknown field"),
        ("allowed: [everything]\n", "only keys that are refused by default"),
        ("{lease_s: 5, sync_s: 5}\n", "three times sync_s"),
        ("quota: {total: {gpus: -1}}\n", ">= 0"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            read_config(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "none")
    assert OperatorConfig().quota.of("any").runs is None
