"""Own code on a cluster, without an image of one's own: `tidegate chart` writes its files as values."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.conftest import chart_values, install, task_values
from tests.cluster.kube import ROOT, CommandError, Namespace, balanced_audit, trains, until

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The values that `tidegate chart` writes for the task of `tidegate new task`."""
    return task_values(tmp_path_factory.mktemp("values"))


@pytest.fixture(scope="module")
def own(namespace: str, values: Path) -> Namespace:
    """The release of the task."""
    release = Namespace(namespace, "own")
    install(release, values, wait=False)
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
        install(Namespace(own.namespace, "forged"), path, wait=False)


NEW = ROOT / "examples" / "new"
# The package's own engines, opened by own code that says so.
ENGINES = """
from tidegate.actor.engines import torch_engine, vector_env


def open_text(setting, control, clock):
    engine = torch_engine.open_engine(setting, control, clock)
    print("own engine of text", flush=True)
    return engine


def open_segments(setting, control, clock):
    engine = vector_env.open_engine(setting, control, clock)
    print("own engine of segments", flush=True)
    return engine
"""
POLICY = """
class Residual:
    def shapes(self, num_inputs):
        return {"own_in": (num_inputs, 32), "own_bias": (32,), "own_middle": (32, 32)}

    def features(self, params, inputs, xp):
        hidden = xp.tanh(inputs @ params["own_in"] + params["own_bias"])
        return hidden + xp.tanh(hidden @ params["own_middle"])
"""
# By workload: the folders of `tidegate new` whose files the run takes, and what of its run file is own code besides.
KINDS = {
    "text": (
        ("curriculum", "objective"),
        {
            "actor.engine": "my_engines.py:open_text",
            "learner.language_model.objective": "my_objective.py:my_loss",
        },
    ),
    "segments": (
        ("env",),
        {"actor.engine": "my_engines.py:open_segments", "policy": "{kind: 'my_policy.py:Residual'}"},
    ),
}


@pytest.fixture(scope="module", params=list(KINDS))
def whole(
    request: pytest.FixtureRequest, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Namespace]]:
    """A run in which all is own code: environment, objective, curriculum and engine, or network and engine."""
    kind: str = request.param
    folders, settings = KINDS[kind]
    here = tmp_path_factory.mktemp(kind)
    for folder in reversed(folders):  # the first one's run file stays
        shutil.copytree(NEW / folder, here, dirs_exist_ok=True)
    (here / "my_engines.py").write_text(ENGINES, encoding="utf-8")
    (here / "my_policy.py").write_text(POLICY, encoding="utf-8")
    release = Namespace(namespace, kind)
    install(release, chart_values(here / "run.yaml", here / "values.yaml", settings), wait=False)
    yield kind, release
    release.helm("uninstall")


def test_a_run_of_own_code_alone_trains(whole: tuple[str, Namespace], figures: dict[str, object]) -> None:
    kind, release = whole
    figures[f"own_{kind}_trains_s"] = trains(release, more=20, timeout_s=600.0)
    told = release.kubectl("logs", "--selector", "app.kubernetes.io/component=actor", "--tail=-1")
    assert f"own engine of {kind}" in told
    assert release.status()["values"].get("task_queue.curriculum_failures_total", 0.0) == 0.0
    balanced_audit(release)
