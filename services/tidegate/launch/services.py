"""The literal table of services: what ``up`` starts, ``serve`` runs and the chart deploys.

A new service is one line in ``SERVICES`` and a package of its own. Names are imported only when they are used, so that
``tidegate --help`` and a light service start at once.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class ServiceEntry:
    """One service: its room, the name of its config Struct, and whether the run file may ask for several instances.

    ``stop_order`` is its place when a run ends: producers of work before its consumers, the books after both.
    """

    room: str
    config: str
    scalable: bool
    stop_order: int


SERVICES: dict[str, ServiceEntry] = {
    "task_queue": ServiceEntry("tidegate.task_queue", "TaskQueueConfig", scalable=False, stop_order=6),
    "actor": ServiceEntry("tidegate.actor", "ActorConfig", scalable=True, stop_order=1),
    "environment": ServiceEntry("tidegate.environment", "EnvironmentConfig", scalable=True, stop_order=2),
    "trajectory_store": ServiceEntry(
        "tidegate.trajectory_store", "TrajectoryStoreConfig", scalable=False, stop_order=5
    ),
    "learner": ServiceEntry("tidegate.learner", "LearnerConfig", scalable=False, stop_order=3),
    "weight_distribution": ServiceEntry(
        "tidegate.weight_distribution", "WeightDistributionConfig", scalable=False, stop_order=4
    ),
    "admission": ServiceEntry("tidegate.admission", "AdmissionConfig", scalable=False, stop_order=7),
}


def load(target: str) -> Any:
    """Import ``module:name`` and return what it names."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def config_type(service: str) -> type[Any]:
    """The config Struct of a service; importing it loads nothing heavy."""
    entry = SERVICES[service]
    return load(f"{entry.room}.config:{entry.config}")


def instances(service: str, *, replicas: int) -> list[str]:
    """Names of a service's instances: numbered where there may be several."""
    if SERVICES[service].scalable:
        return [f"{service}-{index}" for index in range(replicas)]
    return [service]
