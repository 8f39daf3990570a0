"""The fields of TrainingRuns and workloads that the operator reads, and the record that it keeps in the status."""

from typing import Any, Literal, NamedTuple

import msgspec

from tidegate.admission.kubernetes.training_run import GROUP, VERSION, RunCondition
from tidegate.catalogue.operator import State

API_VERSION = f"{GROUP}/{VERSION}"
FINALIZER = "tidegate.dev/release"
# Of Helm, on every object of a release.
RELEASE_ANNOTATION = "meta.helm.sh/release-name"
INSTANCE_LABEL, COMPONENT_LABEL = "app.kubernetes.io/instance", "app.kubernetes.io/component"

VolumePolicy = Literal["Retain", "Delete"]
WorkloadKind = Literal["Deployment", "StatefulSet", "JobSet", "LeaderWorkerSet"]


class RunKey(NamedTuple):
    """A TrainingRun, and the release that is made for it."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """As kubectl and people write it."""
        return f"{self.namespace}/{self.name}"


class ReleaseRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """``status.release``: what the operator has done for a run. The next leader continues from it.

    ``exists``: helm was started for it, and has not uninstalled it since. ``digest``, ``refused``, ``failed`` and
    ``expired`` are of specs: the one that is installed, the one that the chart or its check refused, the one that
    helm could not apply, and the one that was uninstalled after its time. ``admitted``: it counts towards the quota
    of runs, with ``gpus`` towards that of GPUs. ``replicas``: of what was scaled to 0, to be restored. Times are RFC
    3339.
    """

    state: State = "Pending"
    message: str = ""
    exists: bool = False
    digest: str = ""
    refused: str = ""
    failed: str = ""
    expired: str = ""
    admitted: bool = False
    gpus: int = 0
    replicas: dict[str, int] = {}
    run_id: str = ""
    chart: str = ""
    applied_at: str = ""
    failed_at: str = ""
    restarted_at: str = ""


class ManagedMeta(msgspec.Struct, frozen=True, rename="camel"):
    """``metadata`` of a TrainingRun."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    finalizers: list[str] = []
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class ManagedSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a spec that is the operator's; admission reads the rest (``admission.kubernetes.training_run``)."""

    suspend: bool = False
    run: dict[str, Any] | None = None
    values: dict[str, Any] = {}
    volume_policy: VolumePolicy = "Retain"
    ttl_seconds_after_finished: int | None = None


class ManagedStatus(msgspec.Struct, frozen=True, rename="camel"):
    """``conditions`` are admission's and the operator's."""

    observed_generation: int = 0
    conditions: list[RunCondition] = []
    release: ReleaseRecord = ReleaseRecord()


class ManagedRun(msgspec.Struct, frozen=True):
    """A TrainingRun as the operator reads it. Without ``spec.run`` it is none of the operator's."""

    metadata: ManagedMeta
    spec: ManagedSpec = ManagedSpec()
    status: ManagedStatus = ManagedStatus()

    @property
    def key(self) -> RunKey:
        """Its namespace and name."""
        return RunKey(self.metadata.namespace, self.metadata.name)

    def condition(self, kind: str) -> RunCondition | None:
        """A condition by its type."""
        return next((each for each in self.status.conditions if each.type == kind), None)

    def holds(self, kind: str) -> bool:
        """Whether a condition is true of this very spec, not of the one before."""
        found = self.condition(kind)
        return (
            found is not None
            and found.status == "True"
            and found.observed_generation == self.metadata.generation
        )


class RolloutSpec(msgspec.Struct, frozen=True):
    """``partition``: pods below it keep their old revision."""

    partition: int = 0


class UpdateStrategy(msgspec.Struct, frozen=True, rename="camel"):
    """Of a StatefulSet."""

    rolling_update: RolloutSpec | None = None


class SetSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The union of what is read of a Deployment, a StatefulSet, a JobSet and a LeaderWorkerSet."""

    replicas: int = 1
    paused: bool = False
    suspend: bool = False
    update_strategy: UpdateStrategy = UpdateStrategy()


class SetStatus(msgspec.Struct, frozen=True, rename="camel"):
    """Numbers are absent while they are 0."""

    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""


class SetObject(msgspec.Struct, frozen=True):
    """A Deployment, a StatefulSet, a JobSet or a LeaderWorkerSet of a release."""

    metadata: ManagedMeta
    spec: SetSpec = SetSpec()
    status: SetStatus = SetStatus()


class WorkloadState(msgspec.Struct, frozen=True):
    """One workload of a release at one moment.

    ``replicas``: wanted; a suspended JobSet has 0 and another one 1. ``is_settled``: every pod that is wanted is of
    the newest revision and ready. ``is_held``: its pods keep their revision until it is its turn to restart.
    """

    kind: WorkloadKind
    name: str
    service: str
    replicas: int
    is_settled: bool
    is_held: bool = False


def workload_of(kind: WorkloadKind, found: SetObject) -> WorkloadState:
    """The state of a workload, from its object."""
    spec, status = found.spec, found.status
    replicas = int(not spec.suspend) if kind == "JobSet" else spec.replicas
    is_seen = status.observed_generation >= found.metadata.generation
    is_settled, is_held = True, False
    if kind in ("Deployment", "StatefulSet"):
        is_settled = is_seen and status.updated_replicas >= replicas and status.ready_replicas >= replicas
        # Old pods of a Deployment may be ready while the new ones start.
        is_settled = is_settled and status.replicas <= replicas
    if kind == "Deployment":
        is_held = spec.paused
    elif kind == "StatefulSet":
        # Without an update in progress a StatefulSet counts no updated pods.
        if is_seen and status.current_revision == status.update_revision:
            is_settled = status.ready_replicas >= replicas
        rolling = spec.update_strategy.rolling_update
        is_held = rolling is not None and rolling.partition > 0
    return WorkloadState(
        kind,
        found.metadata.name,
        found.metadata.labels.get(COMPONENT_LABEL, ""),
        replicas,
        is_settled,
        is_held,
    )


def is_managed(run: ManagedRun) -> bool:
    """Whether it is the operator's: it has a run file, or its release is still to be removed."""
    return run.spec.run is not None or FINALIZER in run.metadata.finalizers
