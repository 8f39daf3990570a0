"""The literal table of services: what ``up`` starts, ``serve`` runs and the chart deploys.

A new service is one line in ``SERVICES`` and a package of its own. Names are imported on first use, so that
``tidegate --help`` and a light service start at once.
"""

from dataclasses import dataclass
from typing import Any

from tidegate.runtime.instances import instance_name
from tidegate.runtime.loading import load


@dataclass(frozen=True, slots=True)
class ServiceEntry:
    """One service: its package, and the name of its config Struct.

    ``stop_order``: producers of work drain before its consumers, and the journal's and ledger's services after both.
    ``optional``: only runs that need it have it (``run_parsing``); the others have all of them.
    """

    package: str
    config: str
    stop_order: int
    optional: bool = False


SERVICES: dict[str, ServiceEntry] = {
    "task_queue": ServiceEntry("tidegate.task_queue", "TaskQueueConfig", stop_order=6),
    "actor": ServiceEntry("tidegate.actor", "ActorConfig", stop_order=1),
    "inference": ServiceEntry("tidegate.inference", "InferenceConfig", stop_order=2, optional=True),
    "environment": ServiceEntry("tidegate.environment", "EnvironmentConfig", stop_order=2),
    "trajectory_store": ServiceEntry("tidegate.trajectory_store", "TrajectoryStoreConfig", stop_order=5),
    "learner": ServiceEntry("tidegate.learner", "LearnerConfig", stop_order=3),
    "weight_distribution": ServiceEntry(
        "tidegate.weight_distribution", "WeightDistributionConfig", stop_order=4
    ),
    "admission": ServiceEntry("tidegate.admission", "AdmissionConfig", stop_order=7),
}

# Those of every run.
REQUIRED = tuple(service for service, entry in SERVICES.items() if not entry.optional)


def config_type(service: str) -> type[Any]:
    """The config Struct of a service; importing it loads nothing heavy."""
    entry = SERVICES[service]
    return load(f"{entry.package}.config:{entry.config}")


def instances(service: str, *, replicas: int) -> list[str]:
    """Names of a service's instances: numbered where there may be several. None of a service that a run has not."""
    return [instance_name(service, index) for index in range(replicas)]
