"""The catalogue as a whole: the statistics of each service, and every metric."""

from types import ModuleType

from tidegate.catalogue import (
    actor,
    admission,
    environment,
    gateway,
    inference_server,
    learner,
    process,
    publishing,
    supervisor,
    task_queue,
    telemetry,
    trajectory_store,
    weight_distribution,
)
from tidegate.catalogue.kinds import Counter, Family, Gauge, Instrument, Text

# The modules that declare what a service reports, under the service's name on the wire.
MODULES: dict[str, tuple[ModuleType, ...]] = {
    "task_queue": (task_queue, process),
    "actor": (actor, gateway, inference_server, publishing, process),
    "environment": (environment, publishing, process),
    "trajectory_store": (trajectory_store, process),
    "learner": (learner, process),
    "weight_distribution": (weight_distribution, process),
    "admission": (admission, process),
    "supervisor": (supervisor,),
}


def statistics_of(service: str) -> list[Counter | Gauge]:
    """The numbers that a service declares one by one; none for a service that is not known."""
    return [value for value in _values(service) if isinstance(value, Counter | Gauge)]


def families_of(service: str) -> list[Family[Counter] | Family[Gauge]]:
    """The families of numbers that a service declares."""
    return [value for value in _values(service) if isinstance(value, Family)]


def texts_of(service: str) -> list[Text]:
    """The texts that a service declares."""
    return [value for value in _values(service) if isinstance(value, Text)]


def _values(service: str) -> list[object]:
    return [value for module in MODULES.get(service, ()) for value in vars(module).values()]


def _instruments() -> dict[str, Instrument]:
    found = [value for value in vars(telemetry).values() if isinstance(value, Instrument)]
    for service in MODULES:
        found += [each.export.instrument for each in statistics_of(service) if each.export is not None]
        found += [each.instrument for each in families_of(service) if each.instrument is not None]
        found += [each.instrument for each in texts_of(service) if each.instrument is not None]
    return {str(instrument): instrument for instrument in sorted(found)}


INSTRUMENTS = _instruments()
