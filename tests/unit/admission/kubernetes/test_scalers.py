import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidegate.admission.kubernetes.objects import Autoscaler, Deployment
from tidegate.admission.kubernetes.scalers import (
    UNKNOWN_MANAGER,
    KnownScale,
    conflicting,
    declared_zero,
    last_scaler,
    observe_scale,
)
from tidegate.admission.state_file import StateFile
from tidegate.runtime.kubernetes_api import FIELD_MANAGER

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


@pytest.mark.parametrize(
    ("manager", "declares"),
    [
        ("kubectl", True),
        ("", True),
        (FIELD_MANAGER, True),
        ("kube-controller-manager", False),
        ("keda-operator", False),
    ],
)
def test_zero_is_declared_by_a_person_or_the_installation_and_not_by_an_autoscaler(
    manager: str, declares: bool
) -> None:
    known = KnownScale("t-actor", 0, manager, 1_795_000_000.0)
    assert bool(declared_zero(known, replicas=0)) is declares
    assert declared_zero(known, replicas=1) == ""


def test_a_fresh_install_has_no_scaler() -> None:
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


def unmanaged(replicas: int) -> Deployment:
    """As the API server shows one that was applied server-side without replicas: it was never scaled."""
    return deployment(metadata={"name": "t-actor"}, spec={"replicas": replicas})


def test_without_a_manager_a_number_that_is_not_ours_is_of_an_unknown_manager() -> None:
    first = observe_scale(KnownScale(), unmanaged(1), wall_s=10.0)
    assert first == KnownScale("t-actor", 1), "the first observation is not attributed"
    scaled = observe_scale(first, unmanaged(4), wall_s=20.0)
    assert scaled == KnownScale("t-actor", 4, UNKNOWN_MANAGER, 20.0)
    assert scaled.is_foreign
    assert observe_scale(scaled, unmanaged(4), wall_s=30.0) == scaled


def test_what_we_were_writing_is_ours_although_the_answer_was_lost() -> None:
    known = KnownScale("t-actor", 1, writing=3)
    assert not observe_scale(known, unmanaged(3), wall_s=20.0).is_foreign
    assert observe_scale(known, unmanaged(2), wall_s=20.0).is_foreign


def test_managed_fields_give_the_name_and_the_observation_gives_the_time() -> None:
    known = observe_scale(KnownScale(), deployment(), wall_s=5.0)
    assert known == KnownScale("t-actor", 3, "kubectl", 1772362800.0)
    again = observe_scale(known, deployment(spec={"replicas": 5}), wall_s=1772370000.0)
    assert again == KnownScale("t-actor", 5, "kubectl", 1772370000.0), (
        "its noted time is still that of the first scale"
    )


def test_a_scale_restored_between_two_observations_has_a_new_owner() -> None:
    known = observe_scale(KnownScale("t-actor", 3, FIELD_MANAGER, 1.0), deployment(), wall_s=1772370000.0)
    assert known == KnownScale("t-actor", 3, "kubectl", 1772362800.0)


def test_what_is_known_survives_a_restart_and_a_torn_file_is_nothing_known(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "scale.json", KnownScale())
    assert file.read() == KnownScale()
    file.write(KnownScale("t-actor", 3, UNKNOWN_MANAGER, 99.0))
    assert StateFile(tmp_path / "scale.json", KnownScale()).read() == KnownScale(
        "t-actor", 3, UNKNOWN_MANAGER, 99.0
    )
    (tmp_path / "scale.json").write_bytes(b"{\xff")
    assert file.read() == KnownScale()
