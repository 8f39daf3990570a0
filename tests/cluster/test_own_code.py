"""A task of one's own on a cluster, without an image of one's own: `tidegate chart` writes its files as values."""

import time
from pathlib import Path

import pytest
import yaml

from tests.cluster.conftest import TAG, task_values
from tests.cluster.kube import CHART, CommandError, Namespace, until

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The values that `tidegate chart` writes for the task of `tidegate new task`."""
    return task_values(tmp_path_factory.mktemp("values"))


def installed(release: Namespace, values: Path) -> None:
    release.helm(
        "install", str(CHART), "--values", str(CHART / "presets" / "one-node-cpu.yaml"), "--values", str(values),
        "--set", f"images.tag={TAG}", "--timeout", "10m",
    )  # fmt: skip


@pytest.fixture(scope="module")
def own(namespace: str, values: Path) -> Namespace:
    """The release of the task."""
    release = Namespace(namespace, "own")
    installed(release, values)
    return release


def test_a_task_of_ones_own_trains(own: Namespace, figures: dict[str, object]) -> None:
    started_s = time.monotonic()
    until("it trains", lambda: own.status()["values"].get("version_step", 0.0) >= 20, timeout_s=600)
    figures["own_task_20_versions_s"] = time.monotonic() - started_s
    audit = own.audit()
    assert audit["balanced"], audit["problems"]
    assert audit["trained"] >= 20 * 128


def test_files_that_are_not_those_of_the_values_are_refused(own: Namespace, values: Path) -> None:
    changed = yaml.safe_load(values.read_text(encoding="utf-8"))
    changed["files"]["contents"][0]["text"] += "\n# another line\n"
    path = values.with_name("changed.yaml")
    path.write_text(yaml.safe_dump(changed), encoding="utf-8")
    with pytest.raises(CommandError, match=r"my_task\.py is not the file whose SHA-256 is"):
        installed(Namespace(own.namespace, "forged"), path)
