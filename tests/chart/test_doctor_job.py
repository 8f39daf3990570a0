"""`tidegate doctor` by `helm test`, or as a Job: in a pod like the learner's."""

from pathlib import Path
from typing import Any

import pytest

from tests.chart.rendering import (
    EVERYTHING,
    Manifest,
    component,
    containers,
    environment,
    needs_helm,
    of_kind,
    own_pods,
    render,
)
from tests.chart.test_versions import MINORS, problems
from tidegate.cli.app import build

pytestmark = [pytest.mark.chart, needs_helm]

ON: dict[str, Any] = {"doctor.enabled": True}


def doctors(values: dict[str, Any], preset: str = "") -> list[Manifest]:
    return [each for each in of_kind(render(preset, values), "Job") if component(each) == "doctor"]


def test_doctor_is_off_until_it_is_asked_for() -> None:
    assert doctors(EVERYTHING) == []


def test_doctor_is_a_test_of_helm_or_a_job_of_the_release() -> None:
    (tested,) = doctors(ON)
    assert tested["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert tested["metadata"]["name"] == "t-doctor"
    (installed,) = doctors({**ON, "doctor.when": "install"})
    assert "helm.sh/hook" not in str(installed["metadata"])
    (changed,) = doctors({**ON, "doctor.when": "install", "learner.gpu": 1})
    assert installed["metadata"]["name"] != changed["metadata"]["name"], "a Job cannot be changed"
    assert (tested["spec"]["backoffLimit"], tested["spec"]["activeDeadlineSeconds"]) == (0, 900)


@pytest.mark.parametrize("preset", ["one-node-cpu", "single-gpu", "7b-8gpu"])
def test_doctor_looks_at_what_the_learner_gets(preset: str) -> None:
    (job,) = doctors(ON, preset)
    pod, learner = job["spec"]["template"], own_pods(render(preset, ON))["learner"]
    (ours,) = pod["spec"]["containers"]
    theirs = (
        containers(learner)[-1]
        if len(learner["spec"]["containers"]) == 1
        else learner["spec"]["containers"][0]
    )
    for key in ("image", "resources", "securityContext"):
        assert ours[key] == theirs[key]
    assert environment(pod) == {
        each["name"]: each.get("value", each.get("valueFrom")) for each in theirs["env"]
    }
    for key in ("nodeSelector", "tolerations", "securityContext"):
        assert pod["spec"].get(key) == learner["spec"].get(key)
    volumes = {each["name"] for each in pod["spec"]["volumes"]}
    assert {each["name"] for each in ours["volumeMounts"]} <= volumes
    assert [problem for minor in MINORS for problem in problems(job, minor)] == []
    gpus = int(theirs["resources"].get("limits", {}).get("nvidia.com/gpu", 0))
    assert f"--gpus={gpus}" in ours["args"]
    assert not {"livenessProbe", "readinessProbe", "startupProbe", "ports", "lifecycle"} & set(ours)
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "doctor", "no Service sends it calls"


@pytest.mark.parametrize("json", [True, False])
def test_doctor_accepts_the_arguments_of_its_job(*, json: bool, tmp_path: Path) -> None:
    (job,) = doctors({**ON, "doctor.json": json})
    name, *arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    context = build([name]).commands[name].make_context(name, list(arguments))
    assert context.params["json"] is json
    assert context.params["run"] == Path("/etc/tidegate/run.yaml")
