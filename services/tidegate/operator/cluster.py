"""The operator's requests to the API server: TrainingRuns, the workloads of their releases, and helm's records."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tidegate.admission.kubernetes.training_run import GROUP, PLURAL, VERSION
from tidegate.core.errors import NotFoundError, TidegateError
from tidegate.operator.helm import LABEL
from tidegate.operator.objects import (
    FINALIZER,
    INSTANCE_LABEL,
    ManagedMeta,
    ManagedRun,
    RunKey,
    SetObject,
    WorkloadKind,
    WorkloadState,
    workload_of,
)
from tidegate.operator.plans import ScaledWorkload
from tidegate.operator.restarts import hold, let_go
from tidegate.runtime.kubernetes_api import Api

APPS = "/apis/apps/v1"
# Group and plural of each kind. The last two are of other projects, which a cluster may not have.
KINDS: dict[WorkloadKind, tuple[str, str]] = {
    "Deployment": (APPS, "deployments"),
    "StatefulSet": (APPS, "statefulsets"),
    "JobSet": ("/apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    "LeaderWorkerSet": ("/apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
}
SELECTOR = "app.kubernetes.io/name=tidegate"
EXIT_REFUSED = 2
# Of a release that helm was killed in. One that it was uninstalling it goes on to uninstall.
UNFINISHED = ("pending-install", "pending-upgrade", "pending-rollback")
# In place of a namespace, where all are read at once.
EVERYWHERE = "all namespaces"
# What the chart's check leaves when it fails: hooks are no objects of the release.
CHECK_OBJECTS = (
    ("/apis/batch/v1", "jobs", "check"),
    ("/api/v1", "serviceaccounts", "check"),
    ("/api/v1", "configmaps", "check"),
    ("/api/v1", "configmaps", "check-files"),
    ("/apis/networking.k8s.io/v1", "networkpolicies", "check"),
)


class HelmRecord(msgspec.Struct, frozen=True):
    """The Secret in which helm keeps a revision of a release; its content is not read."""

    metadata: ManagedMeta


class TerminatedContainer(msgspec.Struct, frozen=True, rename="camel"):
    """How a container ended."""

    exit_code: int = 0
    message: str = ""


class ContainerEnd(msgspec.Struct, frozen=True):
    """``state``: by ``terminated``, ``waiting`` or ``running``."""

    terminated: TerminatedContainer | None = None


class ContainerReport(msgspec.Struct, frozen=True):
    """One container of a pod."""

    state: ContainerEnd = ContainerEnd()


class PodReport(msgspec.Struct, frozen=True, rename="camel"):
    """``status`` of a pod."""

    container_statuses: list[ContainerReport] = []
    init_container_statuses: list[ContainerReport] = []


class CheckPod(msgspec.Struct, frozen=True):
    """The pod of a check."""

    metadata: ManagedMeta
    status: PodReport = PodReport()


class ClusterObjects(msgspec.Struct, frozen=True):
    """What one round observes. ``unread``: namespaces whose objects could not be read, with the reason."""

    runs: tuple[ManagedRun, ...] = ()
    workloads: Mapping[RunKey, tuple[WorkloadState, ...]] = {}
    unread: Mapping[str, str] = {}


class RunCluster:
    """Requests of the operator; each raises ``TidegateError`` as ``Api`` does."""

    def __init__(self, api: Api, namespaces: Sequence[str]) -> None:
        """``namespaces``: that are read; none for all of the cluster."""
        self._api = api
        self._scopes = [f"/namespaces/{each}" for each in namespaces] or [""]

    async def observe(self, kinds: Iterable[WorkloadKind]) -> ClusterObjects:
        """Every TrainingRun, and the workloads of these kinds by their run."""
        runs: list[ManagedRun] = []
        workloads: dict[RunKey, list[WorkloadState]] = {}
        unread: dict[str, str] = {}
        for scope in self._scopes:
            try:
                found = await self._api.list_all(f"/apis/{GROUP}/{VERSION}{scope}/{PLURAL}", ManagedRun)
                for kind in kinds:
                    for item in await self._sets(kind, scope):
                        key = RunKey(item.metadata.namespace, item.metadata.labels.get(INSTANCE_LABEL, ""))
                        workloads.setdefault(key, []).append(workload_of(kind, item))
            except TidegateError as error:
                unread[scope.rpartition("/")[2] or EVERYWHERE] = str(error)
                continue
            runs += found
        return ClusterObjects(tuple(runs), {key: tuple(each) for key, each in workloads.items()}, unread)

    async def _sets(self, kind: WorkloadKind, scope: str) -> list[SetObject]:
        group, plural = KINDS[kind]
        try:
            return await self._api.list_all(f"{group}{scope}/{plural}", SetObject, selector=SELECTOR)
        except NotFoundError:
            return []  # a kind that the cluster does not know

    # -- the TrainingRun ------------------------------------------------------------------------------------------

    async def write_status(self, key: RunKey, body: object) -> None:
        """Apply the operator's part of a status."""
        await self._api.apply(f"{_run_path(key)}/status", body)

    async def add_finalizer(self, run: ManagedRun) -> None:
        """Add ours, unless the run changed since it was read."""
        await self._write_finalizers(run, [*run.metadata.finalizers, FINALIZER])

    async def remove_finalizer(self, run: ManagedRun) -> None:
        """Remove ours, unless the run changed since it was read."""
        await self._write_finalizers(run, [each for each in run.metadata.finalizers if each != FINALIZER])

    async def _write_finalizers(self, run: ManagedRun, finalizers: list[str]) -> None:
        metadata = {"finalizers": finalizers, "resourceVersion": run.metadata.resource_version}
        await self._api.patch(_run_path(run.key), {"metadata": metadata})

    # -- workloads ------------------------------------------------------------------------------------------------

    async def hold(self, key: RunKey, workload: WorkloadState) -> None:
        """Let its pods keep their revision in the upgrade that follows; one that is gone needs none of it."""
        try:
            await self._api.patch(_set_path(key, workload.kind, workload.name), hold(workload))
        except NotFoundError:
            return

    async def let_restart(self, key: RunKey, workload: WorkloadState) -> None:
        """Let its pods get the newest revision."""
        await self._api.patch(_set_path(key, workload.kind, workload.name), let_go(workload))

    async def scale(self, key: RunKey, workload: ScaledWorkload, replicas: int) -> None:
        """Set its number of pods; a JobSet is suspended instead."""
        path = _set_path(key, workload.kind, workload.name)
        if workload.kind == "JobSet":
            await self._api.patch(path, {"spec": {"suspend": replicas == 0}})
        else:
            await self._api.patch(f"{path}/scale", {"spec": {"replicas": replicas}})

    # -- helm's records and its hooks -------------------------------------------------------------------------------

    async def is_foreign(self, key: RunKey) -> bool:
        """Whether there is a release of this name that no operator made."""
        selector = f"owner=helm,name={key.name}"
        found = await self._api.list_all(_secrets_path(key), HelmRecord, selector=selector)
        return any(LABEL not in each.metadata.labels for each in found)

    async def delete_unfinished(self, key: RunKey) -> int:
        """Delete helm's records of operations that never ended; returns how many there were."""
        selector = f"owner=helm,name={key.name},status in ({','.join(UNFINISHED)})"
        found = await self._api.list_all(_secrets_path(key), HelmRecord, selector=selector)
        for each in found:
            await self._api.delete(f"{_secrets_path(key)}/{each.metadata.name}", grace_s=0)
        return len(found)

    async def check_refusal(self, key: RunKey) -> str:
        """The sentence with which the check refused the run; empty where it did not, or is not there."""
        selector = f"app.kubernetes.io/instance={key.name},app.kubernetes.io/component=check"
        path = f"/api/v1/namespaces/{key.namespace}/pods"
        pods = await self._api.list_all(path, CheckPod, selector=selector)
        # The pod of an earlier check may still be there.
        for pod in sorted(pods, key=lambda each: each.metadata.creation_timestamp)[-1:]:
            for container in (*pod.status.init_container_statuses, *pod.status.container_statuses):
                ended = container.state.terminated
                if ended is not None and ended.exit_code == EXIT_REFUSED:
                    return ended.message.strip() or "its check ended with exit code 2"
        return ""

    async def delete_check(self, key: RunKey) -> None:
        """Delete what a check that failed left behind."""
        for group, plural, name in CHECK_OBJECTS:
            path = f"{group}/namespaces/{key.namespace}/{plural}/{key.name}-{name}"
            try:
                await self._api.delete(path, grace_s=0)
            except NotFoundError:
                continue


def _run_path(key: RunKey) -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{key.namespace}/{PLURAL}/{key.name}"


def _set_path(key: RunKey, kind: WorkloadKind, name: str) -> str:
    group, plural = KINDS[kind]
    return f"{group}/namespaces/{key.namespace}/{plural}/{name}"


def _secrets_path(key: RunKey) -> str:
    return f"/api/v1/namespaces/{key.namespace}/secrets"
