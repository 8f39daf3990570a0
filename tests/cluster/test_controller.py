"""Admission as the scaler: it adds actors that the learner lacks, and keeps a manual scale."""

import json

import pytest
import yaml

from tests.cluster.conftest import cartpole_values, install
from tests.cluster.kube import Namespace, until

pytestmark = [pytest.mark.cluster, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

MOST = 3
SCALING = {
    "mode": "controller", "max_replicas": MOST, "step_s": 5.0, "step_replicas": 1,
    "stabilise_out_s": 5.0, "stabilise_in_s": 600.0, "settle_s": 5.0, "hold_s": 600.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def steered(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """Rollouts that take two seconds each, so that one actor leaves the learner idle."""
    release = Namespace(namespace, "ctl")
    path = cartpole_values(tmp_path_factory.mktemp("values"))
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    values["run"]["workload"]["latency"] = "fixed:2.0"
    values["run"]["admission"] = {"scaling": SCALING}
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    install(release, path, "--set", "admission.kubernetes.rankActors=true")
    return release


def recommendation(release: Namespace) -> str:
    return str(json.loads(release.tidegate("explain", "--json"))["recommendation"])


def replicas(release: Namespace) -> int:
    return int(release.get("deployment", "ctl-actor")["spec"]["replicas"])


def test_actors_are_added_until_the_learner_is_not_short_of_them(
    steered: Namespace, figures: dict[str, object]
) -> None:
    assert replicas(steered) >= 1
    figures["controller_scaled_out_s"] = until(
        "as many actors as allowed", lambda: replicas(steered) == MOST, timeout_s=240
    )
    until("they are ready", lambda: len(steered.ready("actor")) == MOST, timeout_s=120)
    audit = steered.audit()
    assert audit["balanced"], audit["problems"]


def test_pods_are_ranked_by_the_work_they_hold(steered: Namespace) -> None:
    def ranked() -> bool:
        costs = [
            pod["metadata"].get("annotations", {}).get("controller.kubernetes.io/pod-deletion-cost")
            for pod in steered.pods("actor")
        ]
        return len(costs) == MOST and all(cost is not None for cost in costs)

    until("each actor has a deletion cost", ranked, timeout_s=180)


def test_manual_scale_is_recorded_and_held(steered: Namespace) -> None:
    steered.kubectl("scale", "deployment/ctl-actor", "--replicas=1")

    def recorded() -> bool:
        events = steered.get("events.events.k8s.io")
        return any(event.get("reason") == "ExternalScaleDetected" for event in events)

    until("an Event reports it", recorded, timeout_s=120)
    assert replicas(steered) == 1
    # The Event may be written a tick before the recommendation that follows from it.
    until("explain reports the hold", lambda: "held for" in recommendation(steered), timeout_s=30)


def test_admission_continues_without_the_api_server(steered: Namespace) -> None:
    steered.kubectl("delete", "rolebinding", "--selector", "app.kubernetes.io/component=admission")
    before = float(steered.status()["values"]["version_step"])
    until(
        "training continues",
        lambda: float(steered.status()["values"]["version_step"]) > before + 3,
        timeout_s=180,
    )
    assert len(steered.ready("admission")) == 1
