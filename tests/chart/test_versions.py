"""Objects are valid on every Kubernetes from the oldest that the chart names on; Helm 3 and 4 render the same."""

import functools
import json
from pathlib import Path
from typing import Any, cast

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.chart.rendering import (
    CHART,
    CRD_APIS,
    EVERYTHING,
    PRESETS,
    Manifest,
    documents,
    helm_arguments,
    named,
    needs_helm,
    render,
    run,
)
from tools.chart_programs import program

pytestmark = [pytest.mark.chart, needs_helm]

SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
OLDEST_MINOR = 27
MINORS = sorted(
    minor
    for minor in (int(path.name.split(".")[1]) for path in SCHEMAS.glob("v1.*-local-strict"))
    if minor >= OLDEST_MINOR
)
# Of operators, whose definitions are not Kubernetes'.
OF_OPERATORS = {*CRD_APIS, "tidegate.dev/v1alpha1"}
# What the chart renders only where it is asked to, with the first Kubernetes 1.x that has it.
SINCE = {"ValidatingAdmissionPolicy": 30, "ValidatingAdmissionPolicyBinding": 30}
# Of the default render, of each preset and of all options at once.
RENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "defaults": ("", {}),
    **{preset: (preset, {}) for preset in PRESETS},
    "everything": ("", EVERYTHING),
}


@functools.cache
def schemas(minor: int) -> tuple[Path, Registry[Any]]:
    """The folder of a version's schemas, and the definitions that they share."""
    folder = SCHEMAS / f"v1.{minor}.0-local-strict"
    shared = Resource[Any].from_contents(json.loads((folder / "_definitions.json").read_bytes()))
    return folder, shared @ Registry[Any]()


@functools.cache
def validator(minor: int, api: str, kind: str) -> Draft202012Validator:
    """What a version takes for a valid object of a kind; unknown fields are not."""
    folder, shared = schemas(minor)
    group, _, version = api.rpartition("/")
    name = "-".join(part for part in (kind.lower(), group.partition(".")[0], version) if part)
    schema: Any = json.loads((folder / f"{name}.json").read_bytes())
    return Draft202012Validator(schema, registry=cast("Any", shared))


def problems(thing: Manifest, minor: int) -> list[str]:
    found = cast("Any", validator(minor, thing["apiVersion"], thing["kind"])).iter_errors(thing)
    return [
        f"{thing['kind']}/{thing['metadata']['name']}: {each.json_path}: {each.message}" for each in found
    ]


@functools.cache
def distinct_objects() -> list[Manifest]:
    """Every object of Kubernetes' own kinds that any of the renders has, once."""
    found = {
        json.dumps(thing, sort_keys=True): thing
        for preset, values in RENDERS.values()
        for thing in render(preset, values)
        if thing["apiVersion"] not in OF_OPERATORS
    }
    return list(found.values())


def test_schemas_are_those_of_every_version_that_the_chart_names() -> None:
    metadata = cast("Manifest", yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8")))
    assert metadata["kubeVersion"] == f">=1.{OLDEST_MINOR}.0-0"
    assert set(range(OLDEST_MINOR, 35)) <= set(MINORS)


@pytest.mark.parametrize("minor", MINORS)
def test_kubernetes_accepts_every_object(minor: int) -> None:
    asked = [thing for thing in distinct_objects() if SINCE.get(thing["kind"], 0) <= minor]
    assert len(asked) > 100
    assert [problem for thing in asked for problem in problems(thing, minor)] == []


def test_unknown_fields_and_wrong_types_are_found() -> None:
    actor = named(render(), "Deployment", "t-actor")
    actor["spec"]["template"]["spec"]["containers"][0]["imagePullPolicie"] = "Always"
    actor["spec"]["revisionHistoryLimit"] = "five"
    for minor in MINORS:
        assert len(problems(actor, minor)) == 2


@pytest.mark.parametrize(("preset", "values"), RENDERS.values(), ids=RENDERS)
@pytest.mark.skipif(program("helm3") is None, reason="needs a Helm 3 beside Helm 4")
def test_both_majors_of_helm_render_the_same(preset: str, values: dict[str, Any]) -> None:
    apis = [part for api in CRD_APIS for part in ("--api-versions", api)]
    arguments = helm_arguments(preset=preset, values=json.dumps(values))
    # Each knows another Kubernetes; which one a cluster has changes nothing that is rendered.
    by_helm_3 = run("helm3", "template", *arguments, *apis, "--kube-version", "1.30.0")
    assert by_helm_3.returncode == 0, by_helm_3.stderr
    assert documents(by_helm_3.stdout) == render(preset, values)


@pytest.mark.skipif(program("helm3") is None, reason="needs a Helm 3 beside Helm 4")
def test_both_majors_of_helm_refuse_the_same() -> None:
    typo = ["--set-json", "run.stalenes={}"]
    for helm in ("helm3", "helm"):
        done = run(helm, "template", *helm_arguments(), *typo)
        assert done.returncode != 0
        assert "stalenes" in done.stderr
        assert "not allowed" in done.stderr


def test_older_kubernetes_is_refused_by_its_version() -> None:
    done = run("helm", "template", *helm_arguments(), "--kube-version", f"1.{OLDEST_MINOR - 1}.0")
    assert done.returncode != 0
    assert f">=1.{OLDEST_MINOR}.0-0" in done.stderr
    same = run("helm", "template", *helm_arguments(), "--kube-version", f"1.{OLDEST_MINOR}.0")
    assert documents(same.stdout) == render()


@pytest.mark.parametrize("replicas", [None, 3])
def test_notes_say_once_who_owns_the_number_of_actors(replicas: int | None) -> None:
    values = "{}" if replicas is None else json.dumps({"actor.replicas": replicas})
    # Helm 3 asks a cluster for its version before it prints the notes.
    done = run("helm", "install", *helm_arguments(values=values), "--dry-run=client")
    assert done.returncode == 0, done.stderr
    kept, reset = "an upgrade keeps your number", "every `helm upgrade` resets the number"
    assert (kept in done.stdout, reset in done.stdout) == (replicas is None, replicas is not None)
