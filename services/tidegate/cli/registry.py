"""The two literal tables of the command line: its commands, and the services it starts.

A new command is one line in ``COMMANDS``; a new service is one line in ``SERVICES`` (and its own room). Names are
imported only when they are used, so that ``tidegate --help`` and a light service start at once.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command: ``target`` is ``module:function`` (a function typed for typer), ``summary`` its line in the help."""

    target: str
    summary: str


@dataclass(frozen=True, slots=True)
class ServiceEntry:
    """One service: its room, the name of its config Struct, and whether the run file may ask for several instances.

    ``stop_order`` is its place when a run ends: producers of work before its consumers, the books after both.
    """

    room: str
    config: str
    scalable: bool
    stop_order: int


COMMANDS: dict[str, CommandEntry] = {
    "up": CommandEntry(
        "tidegate.cli.up.command:up", "Start everything a run file asks for and train to its target."
    ),
    "serve": CommandEntry("tidegate.cli.serve:serve", "Run one service of a run folder in the foreground."),
    "status": CommandEntry("tidegate.cli.status:status", "Watch a running platform."),
    "audit": CommandEntry(
        "tidegate.cli.audit:audit", "Hold the books against each other: every trajectory, once."
    ),
    "explain": CommandEntry(
        "tidegate.cli.explain:explain", "Who is the bottleneck; why a trajectory was dropped."
    ),
    "slo": CommandEntry(
        "tidegate.cli.slo:slo", "How the run's objectives stand: budgets, burn rates, last breaches."
    ),
    "trace": CommandEntry("tidegate.cli.trace:trace", "The life of one trajectory, stage by stage."),
    "report": CommandEntry(
        "tidegate.cli.report.command:report", "Write the report of a run as one HTML file."
    ),
    "export": CommandEntry(
        "tidegate.cli.export.command:export", "Write a run's trajectories to a Parquet file, for analysis."
    ),
    "await": CommandEntry(
        "tidegate.cli.waiting:wait", "Wait until a running platform is ready, trains, or reaches a target."
    ),
    "plan": CommandEntry(
        "tidegate.cli.plan.command:plan", "Who would bind, what it would cost, and whether asynchrony pays."
    ),
    "sim": CommandEntry(
        "tidegate.cli.sim:sim", "Simulate a fleet of any size, or the services under faults."
    ),
    "drill": CommandEntry(
        "tidegate.cli.drill:drill", "Make one service of a local run slow for a while, on purpose."
    ),
    "credentials": CommandEntry(
        "tidegate.cli.credentials:credentials",
        "Fill a Secret with the broker's passwords, inside of a cluster.",
    ),
    "model": CommandEntry(
        "tidegate.cli.model:model", "The folder of a pretrained model, made if need be, and its digest."
    ),
    "bench": CommandEntry("tidegate.cli.bench.command:bench", "Measure the platform beside plain peers."),
}

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
