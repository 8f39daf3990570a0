"""Who scaled, and when: noticed by the number, named by what Kubernetes notes of it.

``kubectl scale``, an autoscaler (``kube-controller-manager``) and admission itself all write the subresource ``scale``,
and managedFields name who wrote the number of replicas last. Two things they do not do (API server 1.34): they keep the
time of the first scale while the same manager scales again, as the set of its fields did not change; and they name
nobody where the field never had an owner, which is so for whatever was applied server-side without replicas, as Helm 4
installs ours. So a number that is neither what stood before nor what we wrote is somebody's, from when it is seen on.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, cast

import msgspec

from tidegate.admission.kubernetes.api import FIELD_MANAGER
from tidegate.admission.kubernetes.objects import Autoscaler, Deployment, ManagedFields

SUBRESOURCE = "scale"
SOMEBODY = "somebody"


class Scaler(msgspec.Struct, frozen=True):
    """Who last changed how many replicas there should be, and when (seconds since the epoch)."""

    manager: str
    at_s: float

    @property
    def is_us(self) -> bool:
        """Whether it was admission."""
        return self.manager == FIELD_MANAGER


class KnownScale(msgspec.Struct, frozen=True):
    """The scale as it was left: how many replicas, by whom ("" for nobody), when (seconds since the epoch).

    ``writing``: a number that we were about to write; whether it was taken shows at the next look.
    """

    deployment: str = ""
    replicas: int = -1
    by: str = ""
    at_s: float = 0.0
    writing: int | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether it was somebody else."""
        return self.by not in ("", FIELD_MANAGER)


def observe_scale(known: KnownScale, deployment: Deployment, *, wall_s: float) -> KnownScale:
    """What is known after a look. At first sight what is noted counts, later the number, and who is noted with it."""
    name, replicas = deployment.metadata.name, deployment.spec.replicas
    noted = last_scaler(deployment)
    if known.deployment != name:
        return (
            KnownScale(name, replicas)
            if noted is None
            else KnownScale(name, replicas, noted.manager, noted.at_s)
        )
    if replicas != known.replicas:
        ours = noted is None and replicas == known.writing
        by = FIELD_MANAGER if ours else SOMEBODY if noted is None else noted.manager
        return KnownScale(name, replicas, by, wall_s)
    if noted is not None and noted.manager != known.by and noted.at_s > known.at_s:
        return KnownScale(name, replicas, noted.manager, noted.at_s)  # away and back between two looks
    return known


def last_scaler(deployment: Deployment) -> Scaler | None:
    """Who owns the number of replicas by having scaled, as Kubernetes notes it; None when it notes nobody."""
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
