"""The one table of gRPC methods and the roles that may call them, beside the table of subjects (``wire.subjects``).

A role is a service, under its name in ``launch.services``, the process that makes the backups of a cluster, the one
that serves its page, or an operator: the command line and the supervisor. A method that is missing here is refused to
everyone, and a structure test fails. A role may call what it needs, no more: only the learner leases, commits,
publishes and opens lineages; only the task queue follows the outcomes; actors and environment workers upload and report
what they hold; only a backup and a learner that stands by read checkpoints, and only the page the records that it
shows; only an operator pauses, drains, rolls back, retires and reads the accounting; admission, which ends a run, asks
for its last checkpoint and ends a learner that is a Job.
"""

from collections.abc import Mapping
from typing import Literal, get_args

Role = Literal[
    "task_queue",
    "actor",
    "inference",
    "environment",
    "trajectory_store",
    "learner",
    "weight_distribution",
    "admission",
    "backup",
    "ui",
    "operator",
]
ROLES: tuple[Role, ...] = get_args(Role)
# May be called without a credential.
PUBLIC = None

# The credential travels as this metadata of every call, with the scheme before the token.
AUTHORIZATION = "authorization"
SCHEME = "Bearer "

# By service and method: who may call it.
CALLERS: Mapping[str, Mapping[str, tuple[Role, ...] | None]] = {
    "tidegate.v1.ActorService": {
        "GetServing": ("operator",),
    },
    "tidegate.v1.AdmissionService": {
        "GetLimits": ("operator",),
        "SetPaused": ("operator",),
        "Diagnose": ("operator",),
        "GetSlos": ("operator",),
        "GetCompletion": ("operator",),
    },
    "tidegate.v1.EnvironmentService": {
        "Score": ("actor",),
        "Reset": ("actor",),
        "Step": ("actor",),
        "Close": ("actor",),
        "DescribeEnvironment": ("actor", "inference", "learner"),
    },
    "tidegate.v1.InferenceService": {
        "Act": ("actor",),
    },
    "tidegate.v1.LearnerService": {
        "GetProgress": ("operator",),
        "Checkpoint": ("admission", "operator"),
        "Rollback": ("operator",),
        "Complete": ("admission",),
        "ReadCheckpoint": ("learner",),
    },
    "tidegate.v1.LearnerTurnService": {
        "KeepTurn": ("learner",),
        "EndTurn": ("learner",),
    },
    "tidegate.v1.LifecycleService": {
        "GetStats": ("admission", "operator"),
        "Drain": ("operator",),
    },
    "tidegate.v1.RecordsService": {
        "ReadRecords": ("ui",),
    },
    "tidegate.v1.SnapshotService": {
        "ReadSnapshot": ("backup",),
    },
    "tidegate.v1.TaskQueueService": {
        "GetJournal": ("operator",),
        "ReadJournal": ("operator",),
        "ListOpen": ("operator",),
        "Retire": ("operator",),
    },
    "tidegate.v1.TrajectoryStoreService": {
        "LeaseBatch": ("learner",),
        "SampleBatch": ("learner",),
        "ReadUpdate": ("learner",),
        "RenewLeases": ("learner",),
        "CommitBatch": ("learner",),
        "ReleaseBatch": ("learner",),
        "OpenLineage": ("learner",),
        "MarkCheckpointed": ("learner",),
        "WatchOutcomes": ("task_queue",),
        "DropUnarrived": ("task_queue", "actor", "environment"),
        "GetLedger": ("operator",),
        "ReadLedger": ("operator",),
        "VerifyLedger": ("operator",),
        "GetTrajectory": ("operator",),
        "UploadPayload": ("actor", "environment"),
    },
    "tidegate.v1.WeightDistributionService": {
        "PublishPolicy": ("learner",),
        "PullPolicy": ("actor", "inference"),
        "GetHead": ("learner", "operator"),
    },
    # KEDA sends no credential. It learns how many actors are recommended, and changes nothing here.
    "externalscaler.ExternalScaler": {
        "IsActive": PUBLIC,
        "StreamIsActive": PUBLIC,
        "GetMetricSpec": PUBLIC,
        "GetMetrics": PUBLIC,
    },
    # A kubelet sends no credential.
    "grpc.health.v1.Health": {
        "Check": PUBLIC,
        "List": PUBLIC,
        "Watch": PUBLIC,
    },
    "grpc.reflection.v1alpha.ServerReflection": {
        "ServerReflectionInfo": ("operator",),
    },
}


def callers_of(service: str, method: str) -> tuple[Role, ...] | None:
    """The roles that may call a method; ``PUBLIC`` for one that needs no credential, none for an unknown one."""
    return CALLERS.get(service, {}).get(method, ())
