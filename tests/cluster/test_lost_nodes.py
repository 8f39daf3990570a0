"""Nodes lost with their volumes: task queue and trajectory store go on from PostgreSQL, admission from the broker."""

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.kube import Namespace, until
from tests.cluster.replicated import (
    ON_POSTGRES,
    assert_nothing_was_lost,
    install_replicated,
    start_postgres,
    without_gradients_s,
)

pytestmark = ON_POSTGRES
# One node after the other, then the node of all three.
LOSSES = (
    ("trajectory-store",),
    ("task-queue",),
    ("admission",),
    ("trajectory-store", "task-queue", "admission"),
)


@pytest.fixture(scope="module")
def postgres(namespace: str) -> None:
    start_postgres(namespace)


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
    with ExitStack() as lost:
        for component in movable:
            [pod] = [each["metadata"]["name"] for each in release.pods(component)]
            lost.enter_context(release.unremovable(pod))
            lost_at_s = time.time()
            release.kubectl("delete", "pod", pod, "--force", "--grace-period=0", "--wait=false")
            figures[f"without_gradients_s while the old {component} cannot be removed"] = without_gradients_s(
                release, since_s=lost_at_s
            )
            assert release.get("pod", pod)["metadata"]["deletionTimestamp"]
            assert_nothing_was_lost(release)
    release.helm("uninstall", "--wait")
