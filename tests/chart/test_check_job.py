"""The Job that checks a run before anything of a release is installed or changed."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.rendering import (
    EVERYTHING,
    Manifest,
    component,
    containers,
    environment,
    named,
    needs_helm,
    of_kind,
    own_pods,
    render,
)
from tidegate.cli.app import run

pytestmark = [pytest.mark.chart, needs_helm]

MODEL = {"name": "model", "persistentVolumeClaim": {"claimName": "smollm", "readOnly": True}}
PROMPTS = {"name": "prompts", "configMap": {"name": "problems"}}


def annotations(thing: Manifest) -> dict[str, str]:
    return thing["metadata"]["annotations"]


def job(values: dict[str, Any] | None = None) -> Manifest:
    return named(render(values=values), "Job", "t-check")


def test_check_runs_before_everything_else_and_a_failed_one_stays() -> None:
    objects = [each for each in render(values=EVERYTHING) if component(each) == "check"]
    assert [each["kind"] for each in objects] == ["ServiceAccount", "ConfigMap", "Job"]
    for each in objects:
        assert annotations(each)["helm.sh/hook"] == "pre-install,pre-upgrade"
        assert annotations(each)["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    account, config, checking = objects
    assert int(annotations(account)["helm.sh/hook-weight"]) < int(
        annotations(checking)["helm.sh/hook-weight"]
    )
    assert int(annotations(config)["helm.sh/hook-weight"]) < int(annotations(checking)["helm.sh/hook-weight"])
    assert annotations(checking)["helm.sh/hook-output-log-policy"] == "hook-failed"


def test_check_is_tried_once_in_bounded_time_and_tells_its_reason() -> None:
    spec = job({"check.deadlineSeconds": 60})["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (0, 60)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    (container,) = containers(spec["template"])
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_check_names_nothing_that_comes_after_it() -> None:
    objects = render("production-ha", EVERYTHING)
    ours = {
        (each["kind"], each["metadata"]["name"])
        for each in objects
        if "helm.sh/hook" not in str(each["metadata"])
    }
    pod = named(objects, "Job", "t-check")["spec"]["template"]["spec"]
    used = [("ServiceAccount", pod["serviceAccountName"])]
    used += [("ConfigMap", each["configMap"]["name"]) for each in pod["volumes"] if "configMap" in each]
    used += [("Secret", each["secret"]["secretName"]) for each in pod["volumes"] if "secret" in each]
    assert not ours & set(used)
    assert "priorityClassName" not in pod
    assert "secretKeyRef" not in str(pod)


def test_check_reads_the_run_file_that_the_pods_will_read(tmp_path: Path) -> None:
    objects = render(values={"collector.mode": "builtin", "run.staleness.max_lag": 3})
    checked, mounted = (
        named(objects, "ConfigMap", name)["data"]["run.yaml"] for name in ("t-check", "t-run")
    )
    assert yaml.safe_load(checked) == yaml.safe_load(mounted)
    (container,) = containers(named(objects, "Job", "t-check")["spec"]["template"])
    (tmp_path / "run.yaml").write_text(checked)
    command, path, *options = container["args"]
    assert path == "/etc/tidegate/run.yaml"
    assert run([command, str(tmp_path / "run.yaml"), *options]) == 0
    assert run([command, str(tmp_path / "run.yaml"), *options, "--set", "workload.env=Nope-v0"]) == 2


def test_check_holds_the_model_to_the_gpus_memory_and_disk_of_the_learner() -> None:
    values = {
        "learner.gpu": 8,
        "learner.gpuKind": "H100-80",
        "learner.ranks": 16,
        "learner.resources.limits.memory": "104Gi",
        "learner.persistence.size": "20Gi",
    }
    (container,) = containers(job(values)["spec"]["template"])
    room = ["--pods=2", "--gpus=16xH100-80", f"--memory={104 << 30}", f"--disk={20 << 30}"]
    assert container["args"][2:] == room
    unlimited: dict[str, Any] = {"learner.resources": {"limits": None}, "learner.persistence.enabled": False}
    (container,) = containers(job(unlimited)["spec"]["template"])
    assert container["args"][2:] == ["--pods=1"]


def test_check_has_image_variables_and_volumes_of_the_actors_and_the_prompts_of_the_queue() -> None:
    values: dict[str, Any] = {
        "run.policy.kind": "char_lm",
        "commonEnv": [{"name": "PYTHONPATH", "value": "/code"}],
        "actor.env": [{"name": "HF_HUB_OFFLINE", "value": "1"}],
        "actor.nodeSelector": {"pool": "actors"},
        "actor.extraVolumes": [MODEL],
        "actor.extraVolumeMounts": [{"name": "model", "mountPath": "/models"}],
        "taskQueue.extraVolumes": [MODEL, PROMPTS],
        "taskQueue.extraVolumeMounts": [
            {"name": "model", "mountPath": "/models"},
            {"name": "prompts", "mountPath": "/prompts"},
        ],
    }
    objects = render(values=values)
    pod, actor = named(objects, "Job", "t-check")["spec"]["template"], own_pods(objects)["actor"]
    assert containers(pod)[0]["image"] == containers(actor)[0]["image"] == "tidegate-cpu:0.1.0"
    assert environment(pod).items() >= {"PYTHONPATH": "/code", "HF_HUB_OFFLINE": "1"}.items()
    assert pod["spec"]["nodeSelector"] == {"pool": "actors"}
    assert [each for each in pod["spec"]["volumes"] if each in (MODEL, PROMPTS)] == [MODEL, PROMPTS]
    mounted = {each["mountPath"] for each in containers(pod)[0]["volumeMounts"]}
    assert {"/models", "/prompts"} <= mounted
    assert len(mounted) == len(containers(pod)[0]["volumeMounts"])


def test_check_needs_no_graphics_card_and_waits_for_what_fills_a_volume() -> None:
    fills = {"name": "fills", "image": "registry.example/download:1"}
    pod = job({"actor.gpu": 1, "actor.initContainers": [fills]})["spec"]["template"]["spec"]
    assert "nvidia.com/gpu" not in str(pod["containers"][0]["resources"])
    assert pod["initContainers"] == [fills]
    assert pod["containers"][0]["image"] == "tidegate-actor-gpu:0.1.0"


def test_check_can_be_switched_off() -> None:
    objects = render(values={"check.enabled": False})
    assert [each for each in of_kind(objects, "Job", "ServiceAccount") if component(each) == "check"] == []
