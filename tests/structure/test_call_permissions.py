"""Every gRPC method has its callers in one table, and the table is what this page says, from the callers' side."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import get_args

from google.protobuf.descriptor import FileDescriptor, ServiceDescriptor

from tidegate import v1
from tidegate.launch.services import SERVICES
from tidegate.wire.call_permissions import CALLERS, ROLES, Role, callers_of

FOREIGN = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
# What each role may call: written from the other side than the table, so that a slip in one of them is found.
MAY_CALL: dict[str, set[str]] = {
    "task_queue": {"TrajectoryStoreService/WatchOutcomes", "TrajectoryStoreService/DropUnarrived"},
    "actor": {
        "EnvironmentService/Score",
        "EnvironmentService/Reset",
        "EnvironmentService/Step",
        "EnvironmentService/Close",
        "EnvironmentService/DescribeEnvironment",
        "InferenceService/Act",
        "TrajectoryStoreService/UploadPayload",
        "TrajectoryStoreService/DropUnarrived",
        "WeightDistributionService/PullPolicy",
    },
    "inference": {"EnvironmentService/DescribeEnvironment", "WeightDistributionService/PullPolicy"},
    "environment": {"TrajectoryStoreService/UploadPayload", "TrajectoryStoreService/DropUnarrived"},
    "trajectory_store": set(),
    "learner": {
        "EnvironmentService/DescribeEnvironment",
        "LearnerService/ReadCheckpoint",
        "LearnerTurnService/KeepTurn",
        "LearnerTurnService/EndTurn",
        "TrajectoryStoreService/LeaseBatch",
        "TrajectoryStoreService/SampleBatch",
        "TrajectoryStoreService/ReadUpdate",
        "TrajectoryStoreService/RenewLeases",
        "TrajectoryStoreService/CommitBatch",
        "TrajectoryStoreService/ReleaseBatch",
        "TrajectoryStoreService/OpenLineage",
        "TrajectoryStoreService/MarkCheckpointed",
        "WeightDistributionService/PublishPolicy",
        "WeightDistributionService/GetHead",
    },
    "weight_distribution": set(),
    "admission": {"LearnerService/Checkpoint", "LearnerService/Complete", "LifecycleService/GetStats"},
    "backup": {"SnapshotService/ReadSnapshot"},
    "ui": {"RecordsService/ReadRecords"},
    "operator": {
        "ActorService/GetServing",
        "AdmissionService/GetLimits",
        "AdmissionService/SetPaused",
        "AdmissionService/Diagnose",
        "AdmissionService/GetSlos",
        "AdmissionService/GetCompletion",
        "LearnerService/GetProgress",
        "LearnerService/Checkpoint",
        "LearnerService/Rollback",
        "LifecycleService/GetStats",
        "LifecycleService/Drain",
        "TaskQueueService/GetJournal",
        "TaskQueueService/ReadJournal",
        "TaskQueueService/ListOpen",
        "TaskQueueService/Retire",
        "TrajectoryStoreService/GetLedger",
        "TrajectoryStoreService/ReadLedger",
        "TrajectoryStoreService/VerifyLedger",
        "TrajectoryStoreService/GetTrajectory",
        "WeightDistributionService/GetHead",
        "ServerReflection/ServerReflectionInfo",
    },
}
PUBLIC_METHODS = {
    "ExternalScaler/IsActive",
    "ExternalScaler/StreamIsActive",
    "ExternalScaler/GetMetricSpec",
    "ExternalScaler/GetMetrics",
    "Health/Check",
    "Health/List",
    "Health/Watch",
}


def services_of_protos() -> Iterator[ServiceDescriptor]:
    """Every service that generated code declares."""
    for module in pkgutil.iter_modules(v1.__path__):
        if module.name.endswith("_pb2"):
            file: FileDescriptor = importlib.import_module(f"{v1.__name__}.{module.name}").DESCRIPTOR
            yield from file.services_by_name.values()


def short(service: str, method: str) -> str:
    return f"{service.rpartition('.')[2]}/{method}"


def test_table_has_exactly_the_methods_of_the_protos() -> None:
    declared = {
        service.full_name: {method.name for method in service.methods} for service in services_of_protos()
    }
    assert len(declared) == 13
    assert {name: set(methods) for name, methods in CALLERS.items() if name not in FOREIGN} == declared
    assert CALLERS.keys() - declared.keys() == FOREIGN


def test_roles_are_the_services_a_backup_a_page_and_an_operator() -> None:
    assert set(ROLES) == {*SERVICES, "backup", "ui", "operator"}
    assert get_args(Role) == ROLES


def test_each_role_may_call_what_it_needs_and_no_more() -> None:
    granted: dict[str, set[str]] = {role: set() for role in ROLES}
    public: set[str] = set()
    for service, methods in CALLERS.items():
        for method, callers in methods.items():
            for role in callers or ():
                granted[role].add(short(service, method))
            if callers is None:
                public.add(short(service, method))
    assert granted == MAY_CALL
    assert public == PUBLIC_METHODS


def test_method_outside_of_the_table_has_no_callers() -> None:
    assert callers_of("tidegate.v1.LearnerService", "Overwrite") == ()
    assert callers_of("tidegate.v1.AnotherService", "GetLedger") == ()
