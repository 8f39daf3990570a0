"""Nodes lost with their volumes: task queue and trajectory store go on from PostgreSQL, admission from the broker.

``TIDEGATE_E2E_POSTGRES_IMAGE`` names an image in the cluster, built from ``postgres.Containerfile`` beside this file.
"""

import json
import os
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cluster.conftest import cartpole_values, install
from tests.cluster.kube import Namespace, balanced_audit, until
from tests.cluster.servers import start_server

IMAGE = os.environ.get("TIDEGATE_E2E_POSTGRES_IMAGE", "")
PASSWORD = "of-this-test"

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not IMAGE, reason="TIDEGATE_E2E_POSTGRES_IMAGE names no image of PostgreSQL"),
]
# One node after the other, then the node of all three.
LOSSES = (
    ("trajectory-store",),
    ("task-queue",),
    ("admission",),
    ("trajectory-store", "task-queue", "admission"),
)
STEPS_AFTER_A_LOSS = 5


@pytest.fixture(scope="module")
def postgres(namespace: str) -> None:
    """A server in the namespace, and the Secret with its address."""
    start_server(
        Namespace(namespace, "postgres"),
        image=IMAGE,
        port=5432,
        data="/data",
        environment={"PASSWORD": PASSWORD},
        secret={"database": {"uri": f"postgresql://tidegate:{PASSWORD}@postgres/postgres"}},
    )


def steps(release: Namespace) -> list[float]:
    """When each of the newest updates was made, since the epoch."""
    lines = release.kubectl(
        *("exec", f"{release.release}-learner-0", "--", "tail", "-n", "400", "/data/learner/steps.jsonl")
    ).splitlines()
    return [json.loads(line)["at_s"] for line in lines]


def lose(release: Namespace, components: tuple[str, ...]) -> None:
    """Take pods and their volumes away."""
    names = [f"{release.release}-{component}-0" for component in components]
    claims = [f"data-{name}" for name in names]
    before = {claim: release.get("pvc", claim)["metadata"]["uid"] for claim in claims}
    release.kubectl("delete", "pvc", *claims, "--wait=false")
    release.kubectl("delete", "pod", *names, "--force", "--grace-period=0")
    until(
        "new volumes",
        lambda: all(release.get("pvc", claim)["metadata"]["uid"] != before[claim] for claim in claims),
        timeout_s=180,
    )


def install_replicated(release: Namespace, folder: Path, *more: str) -> None:
    """CartPole with replicas in PostgreSQL; it trains when this returns."""
    values = cartpole_values(folder, postgres={})
    install(release, values, "--set", "postgres.existingSecret=database", *more)
    until("training", lambda: len(steps(release)) >= 20, timeout_s=300)


def without_gradients_s(release: Namespace, *, since_s: float) -> float:
    """The longest time without an update since a loss, once training went on."""
    until("training after the loss", lambda: _trained_on(steps(release), since_s=since_s), timeout_s=300)
    return _longest_gap_s(steps(release), since_s=since_s)


def assert_nothing_was_lost(release: Namespace) -> None:
    audit = balanced_audit(release)
    assert audit["dropped"].get("failed", 0) == 0, audit


def test_lost_nodes_cost_seconds_and_no_trajectory(
    postgres: None, namespace: str, tmp_path: Path, figures: dict[str, object]
) -> None:
    release = Namespace(namespace, "n")
    install_replicated(release, tmp_path)
    for components in LOSSES:
        what = " and ".join(components)
        lost_at_s = time.time()
        lose(release, components)
        figures[f"without_gradients_s after the loss of {what}"] = without_gradients_s(
            release, since_s=lost_at_s
        )
        for component in components:
            release.kubectl("rollout", "status", f"statefulset/n-{component}", "--timeout=180s")
        assert_nothing_was_lost(release)
    assert "balanced" in release.tidegate("audit", "--verify")
    release.helm("uninstall", "--wait")


def test_services_without_volumes_start_again_although_their_pods_cannot_be_removed(
    postgres: None, namespace: str, tmp_path: Path, figures: dict[str, object]
) -> None:
    """As on a node that does not answer: its pods are being deleted for ever."""
    release = Namespace(namespace, "m")
    movable = ("task-queue", "trajectory-store")
    install_replicated(
        release, tmp_path,
        "--set", "taskQueue.persistence.enabled=false", "--set", "trajectoryStore.persistence.enabled=false",
    )  # fmt: skip
    held: list[str] = []
    try:
        for component in movable:
            [pod] = [each["metadata"]["name"] for each in release.pods(component)]
            finalizer = json.dumps({"metadata": {"finalizers": ["tidegate.dev/lost-node"]}})
            release.kubectl("patch", "pod", pod, "--type=merge", "--patch", finalizer)
            held.append(pod)
            lost_at_s = time.time()
            release.kubectl("delete", "pod", pod, "--force", "--grace-period=0", "--wait=false")
            figures[f"without_gradients_s while the old {component} cannot be removed"] = without_gradients_s(
                release, since_s=lost_at_s
            )
            assert release.get("pod", pod)["metadata"]["deletionTimestamp"]
            assert_nothing_was_lost(release)
    finally:
        for pod in held:
            release.kubectl(
                "patch", "pod", pod, "--type=merge", "--patch", '{"metadata": {"finalizers": null}}'
            )
    release.helm("uninstall", "--wait")


def _trained_on(at_s: list[float], *, since_s: float) -> bool:
    """Whether training stopped for a moment and went on, or has for a while shown no stop."""
    after = [moment for moment in at_s if moment > since_s]
    return len(after) >= STEPS_AFTER_A_LOSS and time.time() - since_s > 30.0 and time.time() - after[-1] < 2.0


def _longest_gap_s(at_s: list[float], *, since_s: float) -> float:
    """The longest time without an update since the loss."""
    before = [moment for moment in at_s if moment <= since_s][-1:]
    moments = [*before, *(moment for moment in at_s if moment > since_s)]
    return round(max(later - earlier for earlier, later in pairwise(moments)), 1)
