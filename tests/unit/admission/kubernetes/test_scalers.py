import json
from typing import Any

import msgspec

from tidegate.admission.kubernetes.objects import Autoscaler, Deployment
from tidegate.admission.kubernetes.scalers import conflicting, last_scaler

# As a real API server tells it of `kubectl scale`, with the controller's own entry beside it.
SCALED: dict[str, Any] = {
    "metadata": {
        "name": "t-actor",
        "managedFields": [
            {
                "manager": "helm",
                "operation": "Apply",
                "time": "2026-03-01T10:00:00Z",
                "fieldsV1": {"f:spec": {"f:template": {}, "f:selector": {}}},
            },
            {
                "manager": "kube-controller-manager",
                "operation": "Update",
                "subresource": "status",
                "time": "2026-03-01T12:00:00Z",
                "fieldsV1": {"f:status": {"f:replicas": {}}},
            },
            {
                "manager": "kubectl",
                "operation": "Update",
                "subresource": "scale",
                "time": "2026-03-01T11:00:00Z",
                "fieldsV1": {"f:spec": {"f:replicas": {}}},
            },
        ],
    },
    "spec": {"replicas": 3},
}


def deployment(**changes: object) -> Deployment:
    return msgspec.json.decode(json.dumps({**SCALED, **changes}), type=Deployment)


def test_the_owner_of_the_scale_is_who_scaled_and_not_who_installed_or_reports() -> None:
    scaler = last_scaler(deployment())
    assert scaler is not None
    assert (scaler.manager, scaler.at_s, scaler.is_us) == ("kubectl", 1772362800.0, False)


def test_nobody_scaled_what_was_only_installed() -> None:
    assert last_scaler(deployment(metadata={"name": "t-actor"})) is None


def autoscaler(name: str, target: dict[str, str]) -> Autoscaler:
    body = {"metadata": {"name": name}, "spec": {"scaleTargetRef": target}}
    return msgspec.json.decode(json.dumps(body), type=Autoscaler)


def test_an_autoscaler_conflicts_by_the_deployment_it_names() -> None:
    found = [
        autoscaler("hpa", {"kind": "Deployment", "name": "t-actor"}),
        autoscaler("keda", {"name": "t-actor"}),
        autoscaler("set", {"kind": "StatefulSet", "name": "t-actor"}),
        autoscaler("other", {"kind": "Deployment", "name": "t-environment"}),
    ]
    assert conflicting(found, ["t-actor"]) == ["hpa", "keda"]
