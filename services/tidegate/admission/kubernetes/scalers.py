"""Attributes a change of the scale: detected by the number of replicas, attributed by ``managedFields``.

``kubectl scale``, an autoscaler (``kube-controller-manager``) and admission itself all write the subresource ``scale``,
and managedFields name the last writer of the number of replicas. Two gaps (API server 1.34): they keep the time of the
first scale while the same manager scales again, as its set of fields did not change; and they name no manager where the
field never had an owner, as after a server-side apply without replicas, which is how Helm 4 installs our chart. So a
number that is neither the previous one nor ours is attributed to an unknown manager, from when it is observed.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, cast

import msgspec

from tidegate.admission.kubernetes.objects import Autoscaler, Deployment, ManagedFields
from tidegate.core.pauses import zero_sentence
from tidegate.runtime.kubernetes_api import FIELD_MANAGER

SUBRESOURCE = "scale"
UNKNOWN_MANAGER = "an unknown manager"
# Field managers of the horizontal autoscaler and of KEDA. Their 0 may come from a fault of theirs.
AUTOSCALER_MANAGERS = ("kube-controller-manager", "keda")


class Scaler(msgspec.Struct, frozen=True):
    """The manager that changed the number of replicas last, and when (seconds since the epoch)."""

    manager: str
    at_s: float

    @property
    def is_us(self) -> bool:
        """Whether it was admission."""
        return self.manager == FIELD_MANAGER


class KnownScale(msgspec.Struct, frozen=True):
    """The last observed scale: replicas, its manager ("" for none), and when (seconds since the epoch).

    ``writing``: a number that we were about to write; the next observation shows whether it was accepted.
    """

    deployment: str = ""
    replicas: int = -1
    by: str = ""
    at_s: float = 0.0
    writing: int | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether another manager scaled."""
        return self.by not in ("", FIELD_MANAGER)


def observe_scale(known: KnownScale, deployment: Deployment, *, wall_s: float) -> KnownScale:
    """The scale after an observation: the first time by managedFields, later by the number of replicas as well."""
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
        by = FIELD_MANAGER if ours else UNKNOWN_MANAGER if noted is None else noted.manager
        return KnownScale(name, replicas, by, wall_s)
    if noted is not None and noted.manager != known.by and noted.at_s > known.at_s:
        return KnownScale(
            name, replicas, noted.manager, noted.at_s
        )  # changed and restored between two observations
    return known


def declared_zero(known: KnownScale, *, replicas: int) -> str:
    """Who asked for 0 actors and since when, as a sentence; empty with ``replicas``, or after an autoscaler's 0."""
    if replicas or known.by.startswith(AUTOSCALER_MANAGERS):
        return ""
    by = "admission" if known.by == FIELD_MANAGER else known.by
    return zero_sentence(by=by, since_s=known.at_s)


def last_scaler(deployment: Deployment) -> Scaler | None:
    """The manager that owns the number of replicas by having scaled; None when managedFields name none."""
    scaled = [
        Scaler(fields.manager, seconds_of(fields.time))
        for fields in deployment.metadata.managed_fields
        if fields.subresource == SUBRESOURCE and _owns_replicas(fields)
    ]
    return max(scaled, key=lambda scaler: scaler.at_s, default=None)


def conflicting(autoscalers: Iterable[Autoscaler], deployments: Iterable[str]) -> list[str]:
    """Names of autoscalers that also scale one of these Deployments."""
    ours = set(deployments)
    return sorted(
        autoscaler.metadata.name
        for autoscaler in autoscalers
        if autoscaler.spec.scale_target_ref.kind == "Deployment"
        and autoscaler.spec.scale_target_ref.name in ours
    )


def seconds_of(time: str) -> float:
    """RFC 3339 as seconds since the epoch; 0 for an invalid time."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return 0.0


def _owns_replicas(fields: ManagedFields) -> bool:
    spec: object = fields.fields_v1.get("f:spec")
    return isinstance(spec, dict) and "f:replicas" in cast("dict[str, Any]", spec)
