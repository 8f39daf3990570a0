"""Who scaled: read from the managedFields of a Deployment, where Kubernetes notes who wrote which field when.

``kubectl scale``, an autoscaler (``kube-controller-manager``) and admission itself all write the subresource ``scale``;
whoever installs or upgrades does not, as the chart renders no replicas. The time is the API server's: a clock that is
off by a minute makes a hold a minute longer or shorter.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, cast

import msgspec

from tidegate.admission.kubernetes.api import FIELD_MANAGER
from tidegate.admission.kubernetes.objects import Autoscaler, Deployment, ManagedFields

SUBRESOURCE = "scale"


class Scaler(msgspec.Struct, frozen=True):
    """Who last changed how many replicas there should be, and when (seconds since the epoch)."""

    manager: str
    at_s: float

    @property
    def is_us(self) -> bool:
        """Whether it was admission."""
        return self.manager == FIELD_MANAGER


def last_scaler(deployment: Deployment) -> Scaler | None:
    """Who owns the number of replicas by having scaled; None when nobody ever did."""
    scaled = [
        Scaler(fields.manager, seconds_of(fields.time))
        for fields in deployment.metadata.managed_fields
        if fields.subresource == SUBRESOURCE and _owns_replicas(fields)
    ]
    return max(scaled, key=lambda scaler: scaler.at_s, default=None)


def conflicting(autoscalers: Iterable[Autoscaler], deployments: Iterable[str]) -> list[str]:
    """Names of autoscalers that scale one of these Deployments, too."""
    ours = set(deployments)
    return sorted(
        autoscaler.metadata.name
        for autoscaler in autoscalers
        if autoscaler.spec.scale_target_ref.kind == "Deployment"
        and autoscaler.spec.scale_target_ref.name in ours
    )


def seconds_of(time: str) -> float:
    """RFC 3339 as seconds since the epoch; 0 for what is no time."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return 0.0


def _owns_replicas(fields: ManagedFields) -> bool:
    spec: object = fields.fields_v1.get("f:spec")
    return isinstance(spec, dict) and "f:replicas" in cast("dict[str, Any]", spec)
