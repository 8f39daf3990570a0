"""What the objects of workloads say: numbers, whether all pods are of the newest revision, whether they are held."""

from typing import Any

import msgspec
import pytest

from tidegate.launch.services import SERVICES
from tidegate.operator.objects import SetObject, WorkloadKind, WorkloadState, workload_of
from tidegate.operator.restarts import ORDER, hold, in_order, let_go

LABELS = {"app.kubernetes.io/component": "learner", "app.kubernetes.io/instance": "rl"}


def state(
    kind: WorkloadKind, *, spec: dict[str, Any], status: dict[str, Any], generation: int = 2
) -> WorkloadState:
    metadata = {"name": "rl-learner", "generation": generation, "labels": LABELS}
    body = {"metadata": metadata, "spec": spec, "status": {"observedGeneration": 2, **status}}
    return workload_of(kind, msgspec.convert(body, SetObject))


DONE = {"replicas": 2, "readyReplicas": 2, "updatedReplicas": 2}


@pytest.mark.parametrize(
    ("status", "settled"),
    [
        (DONE, True),
        ({**DONE, "readyReplicas": 1}, False),
        ({**DONE, "updatedReplicas": 1}, False),
        ({**DONE, "replicas": 3}, False),
        ({**DONE, "observedGeneration": 1}, False),
        ({}, False),
    ],
)
def test_a_deployment_is_settled_once_only_new_pods_are_there_and_ready(
    status: dict[str, Any], *, settled: bool
) -> None:
    assert state("Deployment", spec={"replicas": 2}, status=status).is_settled == settled


def test_a_workload_of_no_pods_is_settled() -> None:
    for kind in ("Deployment", "StatefulSet"):
        assert state(kind, spec={"replicas": 0}, status={}).is_settled


def test_a_stateful_set_is_settled_by_revision_or_by_updated_pods() -> None:
    spec = {"replicas": 1}
    same = {"currentRevision": "a", "updateRevision": "a"}
    moves = {"currentRevision": "a", "updateRevision": "b"}
    assert state("StatefulSet", spec=spec, status={**same, "replicas": 1, "readyReplicas": 1}).is_settled
    assert not state("StatefulSet", spec=spec, status={**same, "replicas": 1}).is_settled
    ready = {"replicas": 1, "readyReplicas": 1}
    assert not state("StatefulSet", spec=spec, status={**moves, **ready}).is_settled
    assert state("StatefulSet", spec=spec, status={**moves, **ready, "updatedReplicas": 1}).is_settled


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_what_is_held_says_so_and_no_longer_after_it_was_let_go(kind: WorkloadKind) -> None:
    workload = WorkloadState(kind, "rl-learner", "learner", 2, is_settled=True)
    held: Any = hold(workload)["spec"]
    free: Any = let_go(workload)["spec"]
    assert state(kind, spec={"replicas": 2, **held}, status=DONE).is_held
    assert not state(kind, spec={"replicas": 2, **free}, status=DONE).is_held


def test_a_held_stateful_set_of_no_pods_keeps_those_that_come() -> None:
    workload = WorkloadState("StatefulSet", "rl-learner", "learner", 0, is_settled=True)
    assert hold(workload) == {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 1}}}}


def test_a_suspended_job_set_has_no_pods() -> None:
    assert state("JobSet", spec={"suspend": True}, status={}).replicas == 0
    assert state("JobSet", spec={}, status={}).replicas == 1


def test_the_broker_restarts_first_then_who_is_called_then_who_calls() -> None:
    assert set(ORDER) == {"nats", "collector", *(name.replace("_", "-") for name in SERVICES)}
    services = ["actor", "unknown", "learner", "nats", "trajectory-store", "admission", "task-queue"]
    workloads = [WorkloadState("StatefulSet", f"rl-{each}", each, 1, is_settled=True) for each in services]
    assert [each.service for each in in_order(workloads)] == [
        "nats",
        "admission",
        "task-queue",
        "trajectory-store",
        "learner",
        "actor",
        "unknown",
    ]
