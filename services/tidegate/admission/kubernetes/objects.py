"""The fields of Kubernetes objects that admission reads, and no others."""

from typing import Any

import msgspec


class ManagedFields(msgspec.Struct, frozen=True, rename="camel"):
    """Which fields one manager owns; ``fields_v1`` names them as ``f:spec`` within ``f:replicas``."""

    manager: str = ""
    operation: str = ""
    subresource: str = ""
    time: str = ""
    fields_v1: dict[str, Any] = msgspec.field(name="fieldsV1", default={})


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    """``metadata`` of any object."""

    name: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    annotations: dict[str, str] = {}
    managed_fields: list[ManagedFields] = []
    deletion_timestamp: str = ""


class Selector(msgspec.Struct, frozen=True, rename="camel"):
    """``match_labels`` only: the chart writes no expressions."""

    match_labels: dict[str, str] = {}

    def text(self) -> str:
        """As a label selector of a query or a scale subresource."""
        return ",".join(f"{name}={value}" for name, value in sorted(self.match_labels.items()))


class DeploymentSpec(msgspec.Struct, frozen=True):
    """``replicas``: the API server defaults it to 1."""

    replicas: int = 1
    selector: Selector = Selector()


class DeploymentStatus(msgspec.Struct, frozen=True, rename="camel"):
    """``replicas``: existing pods; fields are absent while they are 0."""

    replicas: int = 0
    ready_replicas: int = 0


class Deployment(msgspec.Struct, frozen=True):
    """``apps/v1``."""

    metadata: Meta
    spec: DeploymentSpec
    status: DeploymentStatus = DeploymentStatus()


class ScaleSpec(msgspec.Struct, frozen=True):
    """Absent while it is 0."""

    replicas: int = 0


class Scale(msgspec.Struct, frozen=True):
    """The subresource ``scale`` of ``autoscaling/v1``."""

    metadata: Meta
    spec: ScaleSpec = ScaleSpec()


class Pod(msgspec.Struct, frozen=True):
    """``v1``."""

    metadata: Meta


class ScaleTarget(msgspec.Struct, frozen=True):
    """The target of an autoscaler; KEDA omits ``kind`` for a Deployment."""

    name: str = ""
    kind: str = "Deployment"


class AutoscalerSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The one field that HorizontalPodAutoscalers and ScaledObjects share."""

    scale_target_ref: ScaleTarget = ScaleTarget()


class Autoscaler(msgspec.Struct, frozen=True):
    """A HorizontalPodAutoscaler or a ScaledObject."""

    metadata: Meta
    spec: AutoscalerSpec


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Times are RFC 3339 with microseconds."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class LeaseMeta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The metadata of a Lease that is written back whole: without the labels it would no longer be of the release."""

    name: str
    namespace: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class LeaseObject(msgspec.Struct, frozen=True, rename="camel"):
    """``coordination.k8s.io/v1``."""

    metadata: LeaseMeta
    spec: LeaseSpec = LeaseSpec()
    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"
