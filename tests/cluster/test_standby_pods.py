"""Two pods of the task queue and of the trajectory store: one works, and whatever happens to it, the other goes on."""

import time
from collections.abc import Callable

import pytest

from tests.cluster.kube import CHART, Namespace, until
from tests.cluster.node_faults import NodeFaults
from tests.cluster.replicated import (
    ON_POSTGRES,
    assert_nothing_was_lost,
    install_replicated,
    start_postgres,
    without_gradients_s,
)

pytestmark = ON_POSTGRES
COMPONENTS = ("trajectory-store", "task-queue")


@pytest.fixture(scope="module")
def release(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """CartPole with mutual TLS, which trains when this returns."""
    start_postgres(namespace)
    made = Namespace(namespace, "s")
    install_replicated(
        made, tmp_path_factory.mktemp("values"),
        "--set", "tls.selfSigned.enabled=true",
        "--set", "taskQueue.replicas=2", "--set", "taskQueue.persistence.enabled=false",
        "--set", "trajectoryStore.replicas=2", "--set", "trajectoryStore.persistence.enabled=false",
    )  # fmt: skip
    return made


def worked(release: Namespace, pod: str) -> bool:
    """Whether it is, or has been, its turn."""
    return "service_ready" in release.kubectl("logs", pod)


def working(release: Namespace, component: str) -> str:
    """The pod that works, once the other one stands by."""
    until(
        f"two pods of {component}, one of which stands by",
        lambda: (
            len(release.ready(component)) == 2
            and [worked(release, pod) for pod in release.ready(component)].count(True) == 1
        ),
        timeout_s=240,
    )
    [found] = [pod for pod in release.ready(component) if worked(release, pod)]
    return found


def measured(release: Namespace, component: str, fault: Callable[[str], object]) -> tuple[str, float]:
    """The pod that worked, and the seconds without an update after a fault of it."""
    pod, at_s = working(release, component), time.time()
    fault(pod)
    gap_s = without_gradients_s(release, since_s=at_s)
    assert any(worked(release, other) for other in release.ready(component) if other != pod)
    assert_nothing_was_lost(release)
    return pod, gap_s


@pytest.mark.parametrize("component", COMPONENTS)
def test_pod_that_is_deleted_is_followed_at_once(
    release: Namespace, component: str, figures: dict[str, object]
) -> None:
    _, figures[f"{component} deleted, without_gradients_s"] = measured(
        release, component, lambda pod: release.kubectl("delete", "pod", pod, "--wait=false")
    )


@pytest.mark.parametrize("component", COMPONENTS)
def test_pod_that_is_killed_is_followed(
    release: Namespace, component: str, figures: dict[str, object]
) -> None:
    _, figures[f"{component} killed, without_gradients_s"] = measured(
        release,
        component,
        lambda pod: release.kubectl("delete", "pod", pod, "--force", "--grace-period=0", "--wait=false"),
    )


@pytest.mark.parametrize("component", COMPONENTS)
def test_pod_without_a_network_is_followed(
    release: Namespace, component: str, figures: dict[str, object], faults: NodeFaults
) -> None:
    """As on a node that is lost: nothing comes from it any more, not even the end of its connections."""
    pod, figures[f"{component} cut off, without_gradients_s"] = measured(release, component, faults.cut_off)
    release.kubectl("delete", "pod", pod, "--force", "--grace-period=0")


@pytest.mark.parametrize("component", COMPONENTS)
def test_pod_that_stands_still_is_followed_and_ends_itself_when_it_goes_on(
    release: Namespace, component: str, figures: dict[str, object], faults: NodeFaults
) -> None:
    pod, figures[f"{component} frozen, without_gradients_s"] = measured(release, component, faults.freeze)
    faults.thaw(pod)
    until("it starts again and stands by", lambda: not worked(release, pod), timeout_s=180)
    assert release.restarts("s-learner-0") == 0, "a call of the earlier owner must end no caller"
    assert_nothing_was_lost(release)


def test_upgrade_starts_a_pod_that_stands_by_before_it_ends_one(
    release: Namespace, figures: dict[str, object]
) -> None:
    before = {component: set(release.ready(component)) for component in COMPONENTS}
    at_s = time.time()
    release.helm(
        "upgrade", str(CHART), "--reset-then-reuse-values", "--wait",
        "--set", "taskQueue.podAnnotations.tried=again", "--set", "trajectoryStore.podAnnotations.tried=again",
    )  # fmt: skip
    figures["upgrade of both, without_gradients_s"] = without_gradients_s(release, since_s=at_s)
    for component in COMPONENTS:
        assert not before[component] & set(release.ready(component))
    assert_nothing_was_lost(release)
    assert "balanced" in release.tidegate("audit", "--verify")
    release.helm("uninstall", "--wait")
