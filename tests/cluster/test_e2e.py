"""CartPole on a real cluster, from install to uninstall, with the actions of operators and failures of nodes.

The tests run in this order: each leaves a release that trains for the next.
"""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import NEXT_TAG, cartpole_values
from tests.cluster.kube import CHART, CommandError, Namespace, run, trains, until, updates

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

MAX_LAG = 2
SINGLE = ("task-queue", "trajectory-store", "weight-distribution", "admission", "learner", "nats")
# Each trains again after it was deleted within this time, on a machine that does other things as well.
RECOVERY_TIMEOUT_S = 180.0


def seconds_until_it_trains(release: Namespace, *, more: int = 5) -> float:
    """Seconds until the learner has made this many more updates."""
    return trains(release, more=more, timeout_s=RECOVERY_TIMEOUT_S)


def scale(release: Namespace, replicas: int) -> float:
    """Scale as an operator does; returns the seconds until exactly this many actors are ready."""
    release.kubectl("scale", f"deployment/{release.release}-actor", f"--replicas={replicas}")
    return until(
        f"{replicas} actors",
        lambda: len(release.ready("actor")) == replicas == len(release.pods("actor")),
        timeout_s=RECOVERY_TIMEOUT_S,
    )


def assert_accounting_balances(release: Namespace) -> Any:
    audit = release.audit()
    assert audit["balanced"], audit["problems"]
    assert audit["trained_twice"] == 0
    assert audit["max_lag_trained"] <= MAX_LAG
    return audit


def test_cartpole_reaches_its_target(release: Namespace, figures: dict[str, object]) -> None:
    started_s = time.monotonic()
    release.tidegate("await", "--until", "mean_return>=475", "--timeout", "8m", timeout_s=500)
    figures["s_to_475_after_install"] = time.monotonic() - started_s
    assert_accounting_balances(release)


def test_helm_test_sends_a_task_through_to_a_gradient(release: Namespace) -> None:
    output = release.helm("test", "--timeout", "5m")
    assert "Phase:          Succeeded" in output


def test_every_question_is_answered_inside_of_a_pod(release: Namespace) -> None:
    assert json.loads(release.tidegate("slo", "--json"))["slos"]
    assert json.loads(release.tidegate("explain", "--json"))["bottleneck"]
    assert release.status()["running"]


def test_actors_are_scaled_by_kubectl_while_it_trains(release: Namespace, figures: dict[str, object]) -> None:
    took: dict[str, object] = {}
    for replicas in (2, 6, 1):
        took[f"to_{replicas}"] = {
            "ready_s": scale(release, replicas),
            "trains_s": seconds_until_it_trains(release),
        }
    took["to_0"] = {"ready_s": scale(release, 0)}
    time.sleep(5.0)
    paused_at = updates(release)
    time.sleep(5.0)
    assert updates(release) == paused_at, "zero actors is a pause"
    assert len(release.ready("learner")) == 1, "and no failure"
    assert_accounting_balances(release)
    took["to_3"] = {"ready_s": scale(release, 3), "trains_s": seconds_until_it_trains(release)}
    figures["scaling"] = took
    assert_accounting_balances(release)


def test_an_upgrade_keeps_the_scale_that_kubectl_set(
    release: Namespace, tmp_path: Path, figures: dict[str, object]
) -> None:
    before = {pod["metadata"]["name"] for pod in release.pods("actor")}
    started_s = time.monotonic()
    release.helm(
        "upgrade", str(CHART), "--values", str(CHART / "presets" / "one-node-cpu.yaml"),
        "--values", str(cartpole_values(tmp_path)), "--set", f"images.tag={NEXT_TAG}",
        "--set", "podDefaults.podAnnotations.upgraded=yes", "--wait", "--timeout", "10m",
    )  # fmt: skip
    figures["upgrade_s"] = time.monotonic() - started_s
    assert release.get("deployment", "t-actor")["spec"]["replicas"] == 3
    after = {pod["metadata"]["name"] for pod in release.pods("actor")}
    assert len(after) == 3
    assert not after & before, "the actors are new ones"
    figures["trains_after_upgrade_s"] = seconds_until_it_trains(release)
    assert_accounting_balances(release)


@pytest.mark.parametrize("component", [*SINGLE, "environment", "actor"])
def test_any_pod_may_be_deleted(release: Namespace, component: str, figures: dict[str, object]) -> None:
    seconds_until_it_trains(release)
    victim = release.pods(component)[0]["metadata"]["name"]
    # No grace, as when a node is lost: nothing is output to the process.
    release.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
    took = figures.setdefault("deleted_pod_trains_again_s", {})
    assert isinstance(took, dict)
    # More than the work in flight could provide without the deleted pod.
    took[component] = seconds_until_it_trains(release, more=20)
    until(f"{component} is ready", lambda: bool(release.ready(component)), timeout_s=RECOVERY_TIMEOUT_S)
    assert_accounting_balances(release)


def test_draining_the_actors_off_a_node_loses_nothing(release: Namespace, figures: dict[str, object]) -> None:
    node = release.pods("actor")[0]["spec"]["nodeName"]
    actors = f"app.kubernetes.io/instance={release.release},app.kubernetes.io/component=actor"
    before = {pod["metadata"]["name"] for pod in release.pods("actor")}
    drain = subprocess.Popen(
        ["kubectl", "drain", node, "--pod-selector", actors, "--delete-emptydir-data", "--timeout", "240s"]
    )
    try:
        # Where the node is the only one, its replacements must come back to it: the disruption budget lets one
        # actor go at a time, and the next only when another is ready.
        while drain.poll() is None:
            time.sleep(2.0)
            run("kubectl", "uncordon", node)
        assert drain.returncode == 0
    finally:
        drain.kill()
        run("kubectl", "uncordon", node)
    until("3 actors", lambda: len(release.ready("actor")) == 3, timeout_s=RECOVERY_TIMEOUT_S)
    assert not before & {pod["metadata"]["name"] for pod in release.pods("actor")}
    figures["trains_after_drain_s"] = seconds_until_it_trains(release)
    assert_accounting_balances(release)


def test_pods_may_not_ask_the_api_server_for_what_they_do_not_need(release: Namespace) -> None:
    account = f"system:serviceaccount:{release.namespace}:{release.release}-actor"
    for verb, kind in (("get", "secrets"), ("list", "pods"), ("patch", "deployments"), ("create", "pods")):
        with pytest.raises(CommandError):
            release.kubectl("auth", "can-i", verb, kind, f"--as={account}")
    mounted = release.kubectl(
        "exec", f"deployment/{release.release}-actor", "--",
        "python3", "-c", "import os; print(os.path.exists('/var/run/secrets/kubernetes.io'))",
    )  # fmt: skip
    assert mounted.strip() == "False"


def test_accounting_balances_at_the_end(release: Namespace, figures: dict[str, object]) -> None:
    figures["audit"] = assert_accounting_balances(release)


def test_uninstalling_leaves_nothing_but_the_kept_volumes(release: Namespace) -> None:
    release.helm("uninstall", "--wait", "--timeout", "5m")
    kinds = (
        "deployments,statefulsets,pods,services,configmaps,secrets,serviceaccounts,roles,rolebindings,"
        "networkpolicies,jobs,cronjobs,poddisruptionbudgets,leases"
    )
    of_release = f"app.kubernetes.io/instance={release.release}"

    def left() -> list[str]:
        return release.kubectl("get", kinds, "--selector", of_release, "--output", "name").split()

    # Pods may drain until their grace period ends, after Helm deleted their owners.
    until(f"nothing is left (last: {left()})", lambda: not left(), timeout_s=RECOVERY_TIMEOUT_S)
