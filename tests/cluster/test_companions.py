"""Trackers and callbacks of a run in a cluster: told of everything once, while pods die and until the target."""

import json
import shutil
from typing import Any

import pytest

from tests.cluster.conftest import chart_values, install
from tests.cluster.kube import CHART, ROOT, Namespace, balanced_audit, trains, until, updates

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]

CALLBACK = """
class Notify:
    def on_update(self, update):
        print("told of update", update.step, flush=True)

    def on_end(self, end):
        print("told of the end", end.ended_by, end.succeeded, flush=True)
"""
# By each package's own reader, inside of the container that has it.
TENSORBOARD = """
import glob, json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
[folder] = glob.glob(".tidegate/tensorboard/*")
found = EventAccumulator(folder, size_guidance={"scalars": 0})
found.Reload()
print(json.dumps([each.step for each in found.Scalars("train/loss")]))
"""
MLFLOW = """
import json, sys
from mlflow.tracking.client import MlflowClient
client = MlflowClient("sqlite:///.tidegate/mlflow/mlflow.db")
[experiment] = [each for each in client.search_experiments() if each.name == "tidegate"]
[run] = client.search_runs([experiment.experiment_id])
steps = [each.step for each in client.get_metric_history(run.info.run_id, "train/loss")]
print(json.dumps({"steps": steps, "status": run.info.status}))
"""


@pytest.fixture(scope="module")
def followed(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """A task of one's own with the page, two trackers and a callback."""
    here = tmp_path_factory.mktemp("run")
    shutil.copytree(ROOT / "examples" / "new" / "task", here, dirs_exist_ok=True)
    (here / "my_callbacks.py").write_text(CALLBACK, encoding="utf-8")
    settings = {"callbacks": "[my_callbacks.py:Notify]", "track": "[tensorboard, mlflow]"}
    values = chart_values(here / "run.yaml", here / "values.yaml", settings)
    release = Namespace(namespace, "own")
    release.kubectl("create", "secret", "generic", "page", "--from-literal=token=a-token-of-this-test")
    install(release, values, "--set", "ui.enabled=true", "--set", "ui.existingSecret=page")
    return release


def inside(release: Namespace, container: str, *command: str) -> str:
    return release.kubectl(
        "exec", f"deployment/{release.release}-ui", "--container", container, "--", *command
    )


def of_tensorboard(release: Namespace) -> list[int]:
    return json.loads(inside(release, "track-0", "python", "-c", TENSORBOARD).splitlines()[-1])


def of_mlflow(release: Namespace) -> Any:
    return json.loads(inside(release, "track-1", "python", "-c", MLFLOW).splitlines()[-1])


def told(release: Namespace) -> list[str]:
    log = release.kubectl("logs", f"deployment/{release.release}-ui", "--container", "callback-0")
    return [line.removeprefix("told of ") for line in log.splitlines() if line.startswith("told of ")]


def test_trackers_and_callback_have_each_update_once(followed: Namespace, figures: dict[str, object]) -> None:
    figures["companions_trains_s"] = trains(followed, more=20, timeout_s=600.0)
    reached = int(updates(followed))
    figures["companions_behind_s"] = until(
        "all have it",
        lambda: (
            min(max(of_tensorboard(followed)), max(of_mlflow(followed)["steps"])) >= reached
            and f"update {reached}" in told(followed)
        ),
        timeout_s=120.0,
    )
    assert follow_each_other(of_tensorboard(followed))
    assert follow_each_other(of_mlflow(followed)["steps"])
    assert follow_each_other([int(each.split()[1]) for each in told(followed)])


def follow_each_other(steps: list[int]) -> bool:
    return steps == list(range(steps[0], steps[0] + len(steps)))


def test_a_new_pod_goes_on_where_the_old_one_was(followed: Namespace) -> None:
    before = max(of_mlflow(followed)["steps"])
    followed.kubectl(
        "delete", "pod", "--selector", "app.kubernetes.io/component=ui", "--force", "--grace-period=0"
    )
    until(
        "newer updates",
        lambda: max(of_mlflow(followed)["steps"]) > before + 5 and len(told(followed)) > 5,
        timeout_s=180.0,
    )
    assert of_mlflow(followed)["steps"][0] == 1
    assert follow_each_other(sorted(of_mlflow(followed)["steps"]))
    first = int(told(followed)[0].split()[1])
    assert first >= before - 50, "it was told again what it knew"


def test_a_run_that_reaches_its_target_is_finished_in_the_tracker(followed: Namespace) -> None:
    target = int(updates(followed)) + 20
    followed.helm(
        "upgrade",
        str(CHART),
        "--reuse-values",
        "--set",
        f"run.until=version_step>={target}",
        "--timeout",
        "10m",
    )
    until("it is complete", lambda: of_mlflow(followed)["status"] == "FINISHED", timeout_s=300.0)
    assert told(followed)[-1] == "the end target True"
    assert max(of_mlflow(followed)["steps"]) >= target
    balanced_audit(followed)
