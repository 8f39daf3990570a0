"""The catalogue as a whole: the statistics of each service, and every metric."""

from types import ModuleType

import msgspec

from tidegate.catalogue import (
    actor,
    admission,
    backup,
    environment,
    gateway,
    gpu,
    inference,
    inference_server,
    learner,
    operator,
    process,
    publishing,
    replication,
    supervisor,
    task_queue,
    telemetry,
    trajectory_store,
    weight_distribution,
)
from tidegate.catalogue.kinds import Counter, Family, Gauge, Instrument, Text


class Rate(msgspec.Struct, frozen=True):
    """The counter whose rate tells how fast a service works, and its unit."""

    counter: Counter
    unit: str


class Declared(msgspec.Struct, frozen=True):
    """What a service reports: the modules that declare it, and its rate."""

    modules: tuple[ModuleType, ...]
    rate: Rate | None = None


# Under the service's name on the wire.
DECLARED: dict[str, Declared] = {
    "task_queue": Declared((task_queue, replication, process), Rate(task_queue.ADMITTED, "admitted/s")),
    "actor": Declared(
        (actor, gateway, gpu, inference_server, publishing, process), Rate(actor.STEPS, "steps/s")
    ),
    "inference": Declared((inference, process), Rate(inference.STEPS, "steps/s")),
    "environment": Declared((environment, publishing, process), Rate(environment.SCORED, "scored/s")),
    "trajectory_store": Declared(
        (trajectory_store, replication, process), Rate(trajectory_store.ACCEPTED, "stored/s")
    ),
    "learner": Declared((learner, gpu, process), Rate(learner.TRAINED_STEPS, "steps/s")),
    "weight_distribution": Declared(
        (weight_distribution, process), Rate(weight_distribution.PUBLISHED, "versions/s")
    ),
    "admission": Declared((admission, backup, process), Rate(admission.DECISIONS, "decisions/s")),
    "supervisor": Declared((supervisor,)),
    "operator": Declared((operator,)),
}


def statistics_of(service: str) -> list[Counter | Gauge]:
    """The numbers that a service declares one by one; none for a service that is not known."""
    return [value for value in _values(service) if isinstance(value, Counter | Gauge)]


def families_of(service: str) -> list[Family[Counter] | Family[Gauge]]:
    """The families of numbers that a service declares."""
    return [value for value in _values(service) if isinstance(value, Family)]


def declares(service: str, name: str) -> bool:
    """Whether a service reports a number of this name, sooner or later."""
    return name in statistics_of(service) or any(
        family.value_in(name) is not None for family in families_of(service)
    )


def is_declared(name: str) -> bool:
    """Whether any service reports a number of this name, sooner or later; ``service.name`` is one's own."""
    service, _, own = name.partition(".")
    return any(declares(each, name) for each in DECLARED) or declares(service, own)


def texts_of(service: str) -> list[Text]:
    """The texts that a service declares."""
    return [value for value in _values(service) if isinstance(value, Text)]


def _values(service: str) -> list[object]:
    modules = DECLARED[service].modules if service in DECLARED else ()
    return [value for module in modules for value in vars(module).values()]


def _instruments() -> dict[str, Instrument]:
    found = [value for value in vars(telemetry).values() if isinstance(value, Instrument)]
    for service in DECLARED:
        found += [each.export.instrument for each in statistics_of(service) if each.export is not None]
        found += [each.instrument for each in families_of(service) if each.instrument is not None]
        found += [each.instrument for each in texts_of(service) if each.instrument is not None]
    return {str(instrument): instrument for instrument in sorted(found)}


INSTRUMENTS = _instruments()
