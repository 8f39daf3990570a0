"""OpenTelemetry names as Prometheus names, by the translation of the collector."""

from tidegate.catalogue.kinds import Instrument
from tidegate.catalogue.services import INSTRUMENTS

_UNITS = {"s": "seconds", "By": "bytes"}
_PER = {"s": "per_second"}
_HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")


def label(attribute: str) -> str:
    """An attribute's name as a label."""
    return attribute.replace(".", "_")


def metric(name: str) -> str:
    """The Prometheus name of a metric of the catalogue; for a histogram without its suffixes.

    Raises:
        KeyError: the catalogue has no such metric.
    """
    instrument = INSTRUMENTS[name]
    words = [label(name)]
    of, _, per = instrument.unit.partition("/")  # a unit in braces is not in the name
    unit = _UNITS.get(of, "")
    if instrument.unit == "1" and instrument.kind == "gauge":
        unit = "ratio"
    if unit and not words[0].endswith(unit):
        words.append(unit)
    if per:
        words.append(_PER[per])
    if instrument.kind == "counter":
        words.append("total")
    return "_".join(words)


def series_names() -> frozenset[str]:
    """Every series name of Tidegate's own metrics."""
    return frozenset(
        metric(name) + part for name, instrument in INSTRUMENTS.items() for part in _parts(instrument)
    )


def _parts(instrument: Instrument) -> tuple[str, ...]:
    return _HISTOGRAM_PARTS if instrument.kind == "histogram" else ("",)
