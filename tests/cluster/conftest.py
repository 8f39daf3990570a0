"""Fixtures of the tests on a real cluster; without one the tests are skipped with the reason."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from tests.cluster.kube import CHART, ROOT, Namespace, run, why_no_cluster
from tests.cluster.node_faults import NodeFaults, node_faults
from tests.cluster.policy_enforcement import policy_enforcement, resolver_settings

# Tags of the images in the cluster: the one that is installed, and the one that it is upgraded to.
TAG = os.environ.get("TIDEGATE_E2E_TAG", "dev")
NEXT_TAG = os.environ.get("TIDEGATE_E2E_NEXT_TAG", TAG)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = why_no_cluster()
    for item in items:
        if item.get_closest_marker("cluster") is not None and why:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="module")
def policies() -> Iterator[None]:
    """Network policies are enforced where an image of a program is named that does; nothing was connected before."""
    with policy_enforcement():
        yield


@pytest.fixture(scope="module")
def namespace(policies: None) -> Iterator[str]:
    """A namespace that enforces PodSecurity restricted; gone afterwards unless TIDEGATE_E2E_KEEP is set."""
    name = f"tidegate-e2e-{uuid.uuid4().hex[:6]}"
    labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    run("kubectl", "create", "--filename", "-", given=json.dumps(manifest))
    yield name
    if not os.environ.get("TIDEGATE_E2E_KEEP"):
        run("kubectl", "delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def faults() -> Iterator[NodeFaults]:
    """What may happen to a node, done to one pod."""
    with node_faults(image=f"tidegate-light:{TAG}") as made:
        yield made


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """Measurements of the tests, printed and saved at the end."""
    found: dict[str, object] = {}
    yield found
    path = Path(os.environ.get("TIDEGATE_E2E_FIGURES", tmp_path_factory.mktemp("e2e") / "figures.json"))
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def cartpole_values(folder: Path, **run: object) -> Path:
    """runs/cartpole.yaml as values of the chart, without an end: it trains on after its target.

    ``run``: keys of the run file that the test adds or changes.
    """
    document = yaml.safe_load((ROOT / "runs" / "cartpole.yaml").read_text(encoding="utf-8"))
    document["until"] = ""
    document.pop("actor")
    document |= run
    path = folder / "run-values.yaml"
    path.write_text(yaml.safe_dump({"run": document}), encoding="utf-8")
    return path


def task_values(folder: Path) -> Path:
    """The values of the task of `tidegate new task`, without an end."""
    return chart_values(ROOT / "examples" / "new" / "task" / "run.yaml", folder / "values.yaml", {})


def chart_values(run_file: Path, path: Path, settings: Mapping[str, str]) -> Path:
    """The values that `tidegate chart` writes for a run file with other settings, without an end."""
    given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    chart = ["chart", str(run_file), *given, "--set", "until=''", "-o", str(path)]
    subprocess.run([sys.executable, "-m", "tidegate.cli.main", *chart], check=True, timeout=120.0)
    return path


def install(release: Namespace, values: Path, *more: str, wait: bool = True) -> str:
    """Install the chart on one node without GPUs, of the images that are tested; returns what helm printed.

    ``more``: further arguments. ``wait``: until all pods are ready.
    """
    return release.helm(
        "install", str(CHART), "--values", str(CHART / "presets" / "one-node-cpu.yaml"), "--values", str(values),
        "--set", f"images.tag={TAG}", *resolver_settings(), *more, *(("--wait",) if wait else ()), "--timeout", "10m",
    )  # fmt: skip


@pytest.fixture(scope="module")
def release(
    namespace: str, tmp_path_factory: pytest.TempPathFactory, figures: dict[str, object]
) -> Namespace:
    """CartPole on one node without GPUs, installed and ready."""
    release = Namespace(namespace, "t")
    values = cartpole_values(tmp_path_factory.mktemp("values"))
    figures["notes"] = install(release, values)
    return release
