"""A service's statistics board as metrics: read once for each export, at no cost to messages."""

from collections.abc import Iterator
from functools import cache

import msgspec

from tidegate.catalogue.kinds import Counter, Gauge
from tidegate.catalogue.services import families_of, statistics_of, texts_of
from tidegate.catalogue.telemetry import METRIC_DRAINING
from tidegate.wire.stats import ServiceStats


class MetricReading(msgspec.Struct, frozen=True):
    """One value of one series."""

    metric: str
    value: float
    labels: dict[str, str]


def readings(stats: ServiceStats) -> Iterator[MetricReading]:
    """Every exported statistic on the board, in the units of its metric."""
    declared = _declared(stats.service)
    values = {name: 0.0 for name, statistic in declared.items() if statistic.from_zero} | stats.values
    for name, value in values.items():
        statistic = declared.get(name)
        if statistic is None:
            yield from _family_reading(stats.service, name, value)
        elif statistic.export is not None:
            export = statistic.export
            yield MetricReading(export.instrument, value * statistic.scale, export.labels)
    yield MetricReading(METRIC_DRAINING, float(stats.state in ("draining", "stopped")), {})
    for text in _texts(stats.service):
        present = stats.labels.get(text)
        if text.instrument is not None and present:
            for each in text.one_of:
                yield MetricReading(text.instrument, float(each == present), {text.label: each})


def _family_reading(service: str, name: str, value: float) -> Iterator[MetricReading]:
    for family in _families(service):
        label = family.value_in(name)
        if label is not None and family.instrument is not None:
            yield MetricReading(family.instrument, value, {family.label: label})


@cache
def _declared(service: str) -> dict[str, Counter | Gauge]:
    return {str(statistic): statistic for statistic in statistics_of(service)}


# A catalogue is searched once a process, not once for each value of an export.
_families = cache(families_of)
_texts = cache(texts_of)
