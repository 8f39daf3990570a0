"""A run with a target ends by itself: actors and learner at zero, an exit code to wait for, and a way on."""

import json
import subprocess
import time
from typing import Any

import pytest

from tests.cluster.conftest import cartpole_values, install
from tests.cluster.kube import CHART, Namespace, until

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

TARGET = "version_step>=60"


@pytest.fixture(scope="module")
def ending(namespace: str, tmp_path_factory: pytest.TempPathFactory, figures: dict[str, object]) -> Namespace:
    """CartPole until version 60."""
    release = Namespace(namespace, "end")
    path = cartpole_values(tmp_path_factory.mktemp("values"), until=TARGET)
    started_s = time.monotonic()
    install(release, path, wait=False)
    until("admission is ready", lambda: len(release.ready("admission")) == 1, timeout_s=300)
    figures["admission_ready_s"] = time.monotonic() - started_s
    return release


def replicas(release: Namespace, kind: str, name: str) -> int:
    return int(release.get(kind, name)["spec"]["replicas"])


def awaited(release: Namespace, *arguments: str) -> int:
    """The exit code of `tidegate await --complete` in a pod."""
    done = subprocess.run(
        ["kubectl", "--namespace", release.namespace, "exec", f"statefulset/{release.release}-admission", "--",
         "tidegate", "await", "--complete", *arguments],
        capture_output=True, text=True, timeout=700.0, check=False,
    )  # fmt: skip
    return done.returncode


def finished_rows(release: Namespace) -> Any:
    audit = release.audit()
    assert audit["balanced"], audit["problems"]
    return audit


def test_the_run_is_complete_after_its_target(ending: Namespace, figures: dict[str, object]) -> None:
    started_s = time.monotonic()
    assert awaited(ending, "--timeout", "10m") == 0
    figures["complete_s"] = time.monotonic() - started_s
    until("no actor is left", lambda: replicas(ending, "deployment", "end-actor") == 0, timeout_s=120)
    until("no learner is left", lambda: replicas(ending, "statefulset", "end-learner") == 0, timeout_s=120)
    assert len(ending.ready("admission")) == 1, "the other pods stay for questions"


def test_all_that_was_admitted_has_an_end(ending: Namespace, figures: dict[str, object]) -> None:
    audit = finished_rows(ending)
    figures["audit"] = audit
    assert audit["trained"] > 0
    assert audit["in_flight"] == audit["available"] == 0


def test_an_event_says_so(ending: Namespace) -> None:
    def said() -> bool:
        return any(event.get("reason") == "Completed" for event in ending.get("events.events.k8s.io"))

    until("an Event Completed", said, timeout_s=60)


def test_a_run_that_is_complete_stays_so_when_its_admission_is_replaced(ending: Namespace) -> None:
    ending.kubectl("delete", "pod", "end-admission-0")
    until("admission is back", lambda: len(ending.ready("admission")) == 1, timeout_s=300)
    assert awaited(ending, "--timeout", "60s") == 0
    assert replicas(ending, "deployment", "end-actor") == replicas(ending, "statefulset", "end-learner") == 0


def test_another_target_goes_on_from_the_checkpoint(ending: Namespace, figures: dict[str, object]) -> None:
    started_s = time.monotonic()
    ending.helm(
        "upgrade",
        str(CHART),
        "--reset-then-reuse-values",
        "--set",
        "run.until=version_step>=90",
        "--timeout",
        "5m",
    )
    until("an actor is asked for", lambda: replicas(ending, "deployment", "end-actor") > 0, timeout_s=300)
    until("and a learner", lambda: replicas(ending, "statefulset", "end-learner") == 1, timeout_s=300)
    assert awaited(ending, "--timeout", "10m") == 0
    figures["second_target_s"] = time.monotonic() - started_s
    status = json.loads(ending.tidegate("status", "--json"))
    assert status["target"] == "version_step>=90"
    finished_rows(ending)
