"""Renders of the chart, as Kubernetes objects, and the cluster to try them on."""

import copy
import functools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.cluster.kube import why_no_cluster
from tidegate.launch.services import REQUIRED
from tools.chart_programs import program

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "tidegate"
PRESETS = sorted(path.stem for path in (CHART / "presets").glob("*.yaml"))
CRD_APIS = (
    "monitoring.coreos.com/v1",
    "keda.sh/v1alpha1",
    "cert-manager.io/v1",
    "jobset.x-k8s.io/v1alpha2",
    "trainer.kubeflow.org/v1alpha1",
    "leaderworkerset.x-k8s.io/v1",
)
# Components of every release; an optional service is one of some.
SERVICES = tuple(service.replace("_", "-") for service in REQUIRED)

# What adds the optional service.
WITH_INFERENCE = {"run.actor.engine": "inference_env"}

Manifest = dict[str, Any]

# Every option that adds objects, all at once.
EVERYTHING: dict[str, Any] = {
    "collector.mode": "builtin",
    "collector.tracesEndpoint": "tempo.tracing:4317",
    "actor.pools.spot.nodeSelector": {"pool": "spot"},
    "actor.gateway": {"enabled": True, "existingSecret": "agents"},
    "run.actor.gateway.port": 8800,
    "learner.ranks": 2,
    "nats.replicas": 3,
    "crd.enabled": True,
    "keda.enabled": True,
    "run.admission.scaling.mode": "external",
    "priorityClasses.create": True,
    "metrics.serviceMonitor.enabled": True,
    "networkPolicy.metricsFrom": {"name": "monitoring"},
    "networkPolicy.scalerFrom": {"name": "keda"},
    "ui.enabled": True,
    "ui.existingSecret": "page",
    "run.track": ["mlflow"],
}

NOT_PACKAGED = "is packaged for Linux on x86-64 only; elsewhere it must be on the PATH"
needs_helm = pytest.mark.skipif(program("helm") is None, reason=f"helm {NOT_PACKAGED}")
needs_kubectl = pytest.mark.skipif(program("kubectl") is None, reason=f"kubectl {NOT_PACKAGED}")
needs_cluster = pytest.mark.skipif(bool(why_no_cluster()), reason=why_no_cluster() or "there is one")


def run(*command: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, helm and kubectl as they are packaged; the caller checks its exit code."""
    name, *arguments = command
    return subprocess.run(
        [program(name) or name, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
        # Both are Go programs that end soon: without collections of garbage a render takes a quarter less CPU time.
        env={**os.environ, "GOGC": "off"},
    )


def helm_arguments(
    *, preset: str = "", values: str = "{}", release: str = "t", namespace: str = "space"
) -> list[str]:
    """Common arguments of `helm template`, `lint` and `install`; ``values`` is JSON, given last."""
    arguments = [release, str(CHART), "--namespace", namespace]
    if preset:
        arguments += ["--values", str(CHART / "presets" / f"{preset}.yaml")]
    for key, value in cast("Manifest", json.loads(values)).items():
        arguments += ["--set-json", f"{key}={json.dumps(value)}"]
    return arguments


@functools.cache
def _text(preset: str, values: str, release: str, namespace: str) -> str:
    arguments = helm_arguments(preset=preset, values=values, release=release, namespace=namespace)
    apis = [part for api in CRD_APIS for part in ("--api-versions", api)]
    done = run("helm", "template", *arguments, *apis)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render_text(
    preset: str = "",
    values: Mapping[str, Any] | None = None,
    *,
    release: str = "t",
    namespace: str = "space",
) -> str:
    """The objects that Helm would send, as text."""
    return _text(preset, json.dumps(values or {}, sort_keys=True), release, namespace)


def render(
    preset: str = "",
    values: Mapping[str, Any] | None = None,
    *,
    release: str = "t",
    namespace: str = "space",
) -> list[Manifest]:
    """The same as objects; each caller gets a copy."""
    return copy.deepcopy(_objects(preset, json.dumps(values or {}, sort_keys=True), release, namespace))


@functools.cache
def _objects(preset: str, values: str, release: str, namespace: str) -> list[Manifest]:
    """Parsed once: reading a render costs more than making it."""
    return documents(_text(preset, values, release, namespace))


def documents(text: str) -> list[Manifest]:
    """The objects of a YAML stream."""
    # CSafeLoader: a render with dashboards is a megabyte.
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]


def refusal(
    values: Mapping[str, Any], *, preset: str = "", apis: Sequence[str] = (), kubernetes: str = ""
) -> str:
    """Helm's error for values that it must refuse, on a cluster that has these APIs besides Kubernetes' own.

    ``kubernetes``: its version; helm's own by default.
    """
    known = [part for api in apis for part in ("--api-versions", api)]
    known += ["--kube-version", kubernetes] if kubernetes else []
    done = run("helm", "template", *helm_arguments(preset=preset, values=json.dumps(values)), *known)
    assert done.returncode != 0, "it was accepted"
    return done.stderr


def of_kind(objects: list[Manifest], *kinds: str) -> list[Manifest]:
    """The objects of some kinds."""
    return [each for each in objects if each["kind"] in kinds]


def named(objects: list[Manifest], kind: str, name: str) -> Manifest:
    """The object of a kind and name."""
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def component(thing: Manifest) -> str:
    """The component an object belongs to."""
    return str(thing["metadata"]["labels"]["app.kubernetes.io/component"])


def workloads(objects: list[Manifest]) -> list[Manifest]:
    """Objects with long-running pods."""
    return of_kind(objects, "Deployment", "StatefulSet")


def pods(objects: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Every pod that these objects make, by the object's kind and name, as a standalone pod."""
    for each in objects:
        name = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] == "Pod":
            yield name, each
        elif each["kind"] in ("Deployment", "StatefulSet", "Job", "CronJob"):
            spec = each["spec"]["jobTemplate"]["spec"] if each["kind"] == "CronJob" else each["spec"]
            template = spec["template"]
            metadata = {**template["metadata"], "name": f"of-{each['metadata']['name']}"[:63]}
            yield name, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def as_pod(template: Manifest, name: str) -> Manifest:
    """A pod template as a standalone pod."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": f"of-{name}"[:63]},
        "spec": template["spec"],
    }


def containers(pod: Manifest) -> list[Manifest]:
    """All containers of a pod."""
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def run_values(path: Path) -> dict[str, Any]:
    """A run file as values of the chart."""
    return {"run": yaml.safe_load(path.read_text(encoding="utf-8"))}


def own_pods(objects: list[Manifest]) -> dict[str, Manifest]:
    """The services' pods by component; of several pools the last."""
    return {component(pod): pod for _, pod in pods(objects) if component(pod) in SERVICES}


def environment(pod: Manifest) -> dict[str, Any]:
    """Environment variables of the first container of a pod, by name."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in containers(pod)[0]["env"]}
