"""The rendered objects before a real API server: accepted as they are, in a namespace that enforces PodSecurity."""

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.chart.rendering import (
    CHART,
    CRD_APIS,
    EVERYTHING,
    PRESETS,
    documents,
    needs_cluster,
    needs_helm,
    pods,
    render,
    render_text,
    run,
)

pytestmark = [pytest.mark.chart, needs_helm]
CACHED_SCHEMAS = Path.home() / ".cache" / "tidegate-cluster" / "schemas"
# Objects of these kinds need definitions that a cluster may lack.
OF_OPERATORS = {"ServiceMonitor", "PrometheusRule", "ScaledObject", "TrainingRun", "Certificate", "Issuer"}


def known_apis() -> set[str]:
    """What this cluster's API server knows."""
    return set(run("kubectl", "api-versions").stdout.split())


@pytest.fixture(scope="module")
def space() -> Iterator[str]:
    """A namespace that enforces, and warns of, what is not restricted."""
    name = f"chart-{uuid.uuid4().hex[:8]}"
    labels = {f"pod-security.kubernetes.io/{what}": "restricted" for what in ("enforce", "warn", "audit")}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    made = run("kubectl", "apply", "-f", "-", stdin=json.dumps(namespace))
    assert made.returncode == 0, made.stderr
    yield name
    run("kubectl", "delete", "namespace", name, "--wait=false")


@pytest.mark.cluster
@needs_cluster
@pytest.mark.parametrize("preset", ["", *PRESETS, "everything"])
def test_server_accepts_every_object(space: str, preset: str) -> None:
    values = EVERYTHING if preset == "everything" else {}
    objects = documents(
        render_text(
            "" if preset == "everything" else preset,
            {**values, "priorityClasses.create": False},
            namespace=space,
        )
    )
    apis = known_apis()
    missing = {each["kind"] for each in objects if each["apiVersion"] not in apis}
    assert missing <= OF_OPERATORS
    stream = yaml.safe_dump_all([each for each in objects if each["kind"] not in missing])
    done = run("kubectl", "apply", "--dry-run=server", "-f", "-", stdin=stream)
    assert done.returncode == 0, done.stderr
    # A Deployment of pods that are not restricted is accepted with a warning; the pods would not be.
    assert "Warning" not in done.stderr


@pytest.mark.cluster
@needs_cluster
def test_server_accepts_the_priorities() -> None:
    values = {"priorityClasses.create": True}
    objects = [each for each in render(values=values) if each["kind"] == "PriorityClass"]
    done = run("kubectl", "apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(objects))
    assert done.returncode == 0, done.stderr


@pytest.mark.cluster
@needs_cluster
def test_restricted_namespace_admits_every_pod(space: str) -> None:
    objects = documents(render_text(values={**EVERYTHING, "priorityClasses.create": False}, namespace=space))
    made = list(pods(objects))
    stream: list[dict[str, object]] = []
    for _, pod in made:
        pod["metadata"]["namespace"] = space
        # Accounts are part of the release, and a dry run makes none.
        pod["spec"]["serviceAccountName"] = "default"
        if "data" not in {each["name"] for each in pod["spec"]["volumes"]}:
            claim = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
            pod["spec"]["volumes"].append(claim)  # as a StatefulSet adds it
        stream.append(pod)
    done = run("kubectl", "create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(stream))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("created (server dry run)") == len(made)


@pytest.mark.cluster
@needs_cluster
def test_restricted_namespace_refuses_a_pod_that_is_not(space: str) -> None:
    pod = next(pod for name, pod in pods(render()) if name == "Deployment/t-actor")
    pod["metadata"]["namespace"] = space
    pod["spec"]["serviceAccountName"] = "default"
    del pod["spec"]["containers"][0]["securityContext"]["capabilities"]
    done = run("kubectl", "create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod))
    assert 'violates PodSecurity "restricted' in done.stderr


@pytest.mark.cluster
@needs_cluster
def test_helm_itself_installs_against_the_server(space: str) -> None:
    done = run("helm", "install", "t", str(CHART), "-n", space, "--dry-run=server")
    assert done.returncode == 0, done.stderr
    assert "kubectl -n" in done.stdout  # the notes
    assert "scale deployment/t-actor" in done.stdout


@pytest.mark.skipif(
    shutil.which("kubeconform") is None or not CACHED_SCHEMAS.is_dir(),
    reason="needs kubeconform on the PATH and schemas taken from an API server",
)
@pytest.mark.parametrize("preset", ["", *PRESETS, "everything"])
def test_kubeconform_finds_nothing(preset: str) -> None:
    text = render_text(values=EVERYTHING) if preset == "everything" else render_text(preset)
    location = f"{CACHED_SCHEMAS}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    kinds = {each["kind"] for each in documents(text)} & OF_OPERATORS - {"TrainingRun"}
    unknown = sorted(kind for kind in kinds if not list(CACHED_SCHEMAS.glob(f"{kind.lower()}-*.json")))
    skip = ",".join(["TrainingRun", *unknown])
    done = run("kubeconform", "-strict", "-schema-location", location, "-skip", skip, stdin=text)
    assert done.returncode == 0, done.stdout + done.stderr
    if unknown:
        pytest.skip(f"the rest is valid; that API server had no schema of {', '.join(unknown)}")


@pytest.mark.parametrize("api", CRD_APIS)
def test_operators_are_optional(api: str) -> None:
    assert not [each for each in render() if each["apiVersion"] == api]
