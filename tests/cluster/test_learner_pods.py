"""Two pods of the learner: one trains, and whatever happens to it, the other goes on from its updates."""

import time
from collections.abc import Callable

import pytest

from tests.cluster.conftest import cartpole_values, install
from tests.cluster.kube import CHART, Namespace, balanced_audit, until
from tests.cluster.node_faults import NodeFaults
from tests.cluster.replicated import steps, without_gradients_s

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def release(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """CartPole with mutual TLS, which trains when this returns."""
    made = Namespace(namespace, "l")
    install(
        made, cartpole_values(tmp_path_factory.mktemp("values")),
        "--set", "tls.selfSigned.enabled=true", "--set", "learner.standbys=1",
    )  # fmt: skip
    assert made.ready("learner") == ["l-learner-0", "l-learner-1"], "both, for `helm --wait`"
    until("training", lambda: len(steps(made)) >= 20, timeout_s=300)
    return made


def trains(release: Namespace, pod: str) -> bool:
    """Whether it is, or has been, its turn."""
    return "turn_taken" in release.kubectl("logs", pod)


def training(release: Namespace) -> str:
    """The pod that trains, once the other one stands by with a checkpoint of it."""

    def found() -> list[str]:
        pods = release.ready("learner")
        standing_by = [pod for pod in pods if not trains(release, pod)]
        return pods if len(pods) == 2 and len(standing_by) == 1 and has_copy(standing_by[0]) else []

    def has_copy(pod: str) -> bool:
        return "checkpoint_copied" in release.kubectl("logs", pod)

    until("one pod trains, the other has its checkpoint", lambda: bool(found()), timeout_s=240)
    [pod] = [pod for pod in release.ready("learner") if trains(release, pod)]
    return pod


def followed(release: Namespace, pod: str, *, since_s: float) -> float:
    """Seconds without an update, after which the other pod trains, and no update was lost."""
    gap_s = without_gradients_s(release, since_s=since_s)
    [other] = [
        each["metadata"]["name"] for each in release.pods("learner") if each["metadata"]["name"] != pod
    ]
    assert trains(release, other)
    audit = balanced_audit(release)
    # Nothing is taken back, because the updates since its checkpoint were made again.
    assert audit["dropped"].get("superseded", 0) == 0, audit
    return gap_s


@pytest.mark.parametrize(
    ("what", "force"), [("deleted", []), ("deleted by force", ["--force", "--grace-period=0"])]
)
def test_pod_that_is_deleted_is_followed(
    release: Namespace, figures: dict[str, object], what: str, force: list[str]
) -> None:
    pod = training(release)
    with release.unremovable(pod):
        at_s = time.time()
        release.kubectl("delete", "pod", pod, "--wait=false", *force)
        figures[f"learner {what}, without_gradients_s"] = followed(release, pod, since_s=at_s)


def test_pod_whose_process_is_killed_goes_on_in_its_place_or_is_followed(
    release: Namespace, figures: dict[str, object], faults: NodeFaults
) -> None:
    """Kubernetes starts it again within a second or two, which is sooner than the other one would."""
    pod, at_s = training(release), time.time()
    faults.kill(pod)
    figures["learner killed, without_gradients_s"] = without_gradients_s(release, since_s=at_s)
    balanced_audit(release)


def measured(
    release: Namespace, fault: Callable[[str], object], figures: dict[str, object], what: str
) -> str:
    pod, at_s = training(release), time.time()
    fault(pod)
    figures[f"learner {what}, without_gradients_s"] = followed(release, pod, since_s=at_s)
    return pod


def test_pod_without_a_network_is_followed(
    release: Namespace, figures: dict[str, object], faults: NodeFaults
) -> None:
    """As on a node that is lost: nothing comes from it any more, not even the end of its connections."""
    pod = measured(release, faults.cut_off, figures, "cut off")
    release.kubectl("delete", "pod", pod, "--force", "--grace-period=0")


def test_pod_that_stands_still_is_followed_and_stands_by_when_it_goes_on(
    release: Namespace, figures: dict[str, object], faults: NodeFaults
) -> None:
    pod = measured(release, faults.freeze, figures, "frozen")
    faults.thaw(pod)
    until("it starts again and stands by", lambda: not trains(release, pod), timeout_s=180)
    assert training(release) != pod
    balanced_audit(release)


def test_upgrade_replaces_one_pod_after_the_other(release: Namespace, figures: dict[str, object]) -> None:
    training(release)
    at_s = time.time()
    release.helm(
        "upgrade", str(CHART), "--reset-then-reuse-values", "--wait",
        "--set", "learner.podAnnotations.tried=again",
    )  # fmt: skip
    figures["upgrade, without_gradients_s"] = without_gradients_s(release, since_s=at_s)
    balanced_audit(release)
    assert "balanced" in release.tidegate("audit", "--verify")
    release.helm("uninstall", "--wait")
