"""``k8s/``: the chart's renders as Kustomize files."""

import functools
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.chart.rendering import (
    ROOT,
    Manifest,
    documents,
    named,
    needs_cluster,
    needs_helm,
    needs_kubectl,
    of_kind,
    run,
)
from tests.support.call_credentials import write_test_credentials
from tidegate.runtime.call_credentials import DIGESTS_FILE, token_file
from tidegate.wire.call_permissions import ROLES
from tools import chart_kustomize
from tools.chart_kustomize import (
    CALL_FOLDER,
    CALL_SECRET,
    COMPONENTS,
    OVERLAYS,
    PASSWORDS,
    RELEASE,
    SECRET,
)

pytestmark = [pytest.mark.chart, needs_helm, needs_kubectl]
K8S = ROOT / "k8s"
# Objects of these kinds need definitions that a cluster may lack.
OF_OPERATORS = {"ServiceMonitor", "PrometheusRule", "ScaledObject"}


@functools.cache
def rendered() -> dict[str, str]:
    """The files that the tool would write."""
    return chart_kustomize.build()


@pytest.fixture(scope="module")
def k8s(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which every overlay has its passwords."""
    copy = tmp_path_factory.mktemp("kustomize") / "k8s"
    shutil.copytree(K8S, copy)
    for overlay in OVERLAYS:
        (copy / "overlays" / overlay / PASSWORDS).write_text("actor=p1\noperator=p2\n", encoding="utf-8")
        write_test_credentials(copy / "overlays" / overlay / CALL_FOLDER)
    return copy


def built(folder: Path) -> list[Manifest]:
    """A folder as kubectl builds it."""
    done = run("kubectl", "kustomize", str(folder))
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def test_files_are_what_the_chart_renders() -> None:
    there = {
        str(path.relative_to(K8S)): path.read_text(encoding="utf-8")
        for folder in ("base", "components", "overlays")
        for path in (K8S / folder).rglob("*.yaml")
    }
    assert set(there) == set(rendered()), "run `make k8s`"
    assert [name for name, text in rendered().items() if there[name] != text] == [], "run `make k8s`"


def test_base_builds_by_itself_and_holds_no_password(k8s: Path) -> None:
    objects = built(k8s / "base")
    assert {each["metadata"]["name"] for each in of_kind(objects, "Deployment")} == {
        "tidegate-actor",
        "tidegate-environment",
    }
    assert [each["metadata"]["name"] for each in of_kind(objects, "Secret", "Job")] == ["tidegate-streams"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay_is_the_preset(k8s: Path, overlay: str) -> None:
    values = chart_kustomize.values_of(OVERLAYS[overlay])
    wanted = chart_kustomize.render(values, preset=OVERLAYS[overlay].preset)
    objects = built(k8s / "overlays" / overlay)
    generated = {SECRET, CALL_SECRET}
    assert generated <= {each["metadata"]["name"] for each in of_kind(objects, "Secret")}
    assert set(named(objects, "Secret", CALL_SECRET)["data"]) == {*map(token_file, ROLES), DIGESTS_FILE}
    found = {
        f"{each['kind']}/{each['metadata']['name']}": without_namespaces(each)
        for each in objects
        if each["metadata"]["name"] not in generated
    }
    assert found.keys() == wanted.keys()
    for name, thing in wanted.items():
        assert in_one_order(found[name]) == in_one_order(thing)


def in_one_order(node: Any) -> Any:
    """With lists that Kubernetes merges by name sorted by it: a patch puts what it changes first."""
    if isinstance(node, dict):
        return {key: in_one_order(value) for key, value in cast("Manifest", node).items()}
    if isinstance(node, list):
        items = [in_one_order(each) for each in cast("list[Any]", node)]
        return sorted(items, key=lambda each: each["name"]) if is_named(items) else items
    return node


def is_named(items: list[Any]) -> bool:
    """Whether all of a list's items have a name."""
    return all(isinstance(each, dict) and "name" in each for each in items)


def without_namespaces(thing: Manifest) -> Manifest:
    """As the chart's render without a namespace; the overlays put one on everything."""
    if thing["kind"] != "PriorityClass":
        assert thing["metadata"].pop("namespace") == RELEASE
    for subject in thing.get("subjects", []):
        assert subject.pop("namespace") == RELEASE
    return thing


@pytest.mark.parametrize("component", COMPONENTS)
def test_component_goes_with_any_overlay(k8s: Path, component: str) -> None:
    folder = k8s / "overlays" / f"with-{component}"
    folder.mkdir()
    layered = {"resources": ["../kind-cpu"], "components": [f"../../components/{component}"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(layered), encoding="utf-8")
    plain, more = built(k8s / "overlays" / "kind-cpu"), built(folder)
    assert more != plain
    assert len(more) >= len(plain)


def test_components_add_up(k8s: Path) -> None:
    folder = k8s / "overlays" / "several"
    folder.mkdir()
    several = ["gpu", "kueue", "netpol", "spot"]
    layered: dict[str, Any] = {"resources": ["../kind-cpu"]}
    layered["components"] = [f"../../components/{each}" for each in several]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(layered), encoding="utf-8")
    objects = built(folder)
    template = named(objects, "StatefulSet", "tidegate-learner")["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert template["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "tidegate"
    assert container["image"].startswith("tidegate-learner-gpu")
    assert container["resources"]["limits"] == {"memory": "2Gi", "nvidia.com/gpu": 1}
    assert container["resources"]["requests"]["cpu"] == "100m"  # of kind-cpu
    assert "NVIDIA_VISIBLE_DEVICES" not in {each["name"] for each in container["env"]}
    assert named(objects, "Deployment", "tidegate-actor-spot")
    assert of_kind(objects, "NetworkPolicy")


def test_patch_contains_only_changes() -> None:
    old: Manifest = {"a": 1, "b": {"c": [{"name": "x", "v": 1}, {"name": "y", "v": 2}]}, "gone": 0, "l": [1]}
    new: Manifest = {"a": 1, "b": {"c": [{"name": "x", "v": 1}, {"name": "y", "v": 3}]}, "l": [2], "n": {}}
    patch = chart_kustomize.difference(old, new)
    assert patch == {"gone": None, "b": {"c": [{"name": "y", "v": 3}]}, "l": [2], "n": {}}
    assert chart_kustomize.difference(new, new) is None


@pytest.mark.cluster
@needs_cluster
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_server_accepts_every_overlay(k8s: Path, overlay: str) -> None:
    apis = set(run("kubectl", "api-versions").stdout.split())
    objects = built(k8s / "overlays" / overlay)
    missing = {each["kind"] for each in objects if each["apiVersion"] not in apis}
    assert missing <= OF_OPERATORS
    sent = [each for each in objects if each["kind"] not in missing]
    for each in sent:
        # A dry run makes no namespace, nor the classes that pods are held to.
        if "namespace" in each["metadata"]:
            each["metadata"]["namespace"] = "default"
    done = run("kubectl", "apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(sent))
    assert done.returncode == 0, done.stderr
