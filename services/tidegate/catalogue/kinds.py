"""What a declaration is made of: statistics of a service's board, and the metrics that they are exported as.

A statistic and an instrument *are* their names (texts), so that they index reports and cost nothing where a message is
counted; beside the name they carry what an operator needs to read them. ``StatsBoard`` takes them and no plain text.
"""

from collections.abc import Mapping
from typing import ClassVar, Generic, Literal, Self, TypeVar

import msgspec

InstrumentKind = Literal["counter", "histogram", "gauge", "window_max"]
# Units of the board that metrics do not use, with the unit that they are converted to and the factor.
BASE_UNITS = {"ms": ("s", 1e-3), "MB": ("By", 1e6)}


class Instrument(str):
    """A metric by its name: how it is aggregated, its UCUM unit, its meaning, and a histogram's bucket limits.

    A ``window_max`` is a gauge that keeps the largest value between two exports.
    """

    __slots__ = ("bounds", "kind", "meaning", "unit")
    kind: InstrumentKind
    unit: str
    meaning: str
    bounds: tuple[float, ...]

    def __new__(
        cls, name: str, kind: InstrumentKind, unit: str, meaning: str, bounds: tuple[float, ...] = ()
    ) -> Self:
        """``bounds`` for histograms only."""
        self = super().__new__(cls, name)
        self.kind = kind
        self.unit = unit
        self.meaning = meaning
        self.bounds = bounds
        return self

    def of(self, labels: Mapping[str, str]) -> "Export":
        """The part of this metric with these labels, for a statistic that is exported as it."""
        return Export(self, dict(labels))


class Export(msgspec.Struct, frozen=True):
    """The metric that a statistic is exported as, and the labels that tell it from others of the same metric."""

    instrument: Instrument
    labels: dict[str, str] = {}


class Statistic(str):
    """A value on a service's board, by its name there and on the wire.

    ``unit``: as the board has it; durations and sizes are exported in seconds and bytes. ``export``: None for what only
    the platform itself and the run's report read.
    """

    __slots__ = ("export", "from_zero", "meaning", "scale", "unit")
    kind: ClassVar[InstrumentKind] = "gauge"
    unit: str
    meaning: str
    export: Export | None
    scale: float
    from_zero: bool

    def __new__(
        cls,
        name: str,
        unit: str,
        meaning: str,
        *,
        exported: str | Export | Literal[False],
        from_zero: bool = False,
    ) -> Self:
        """``exported``: a metric of its own by name, part of a shared one, or False.

        ``from_zero``: exported as 0 before anything is counted, for what an alert must see increase.
        """
        self = super().__new__(cls, name)
        self.unit, self.meaning, self.from_zero = unit, meaning, from_zero
        base_unit, self.scale = BASE_UNITS.get(unit, (unit, 1.0))
        if isinstance(exported, Export):
            self.export = exported
        else:
            self.export = Export(Instrument(exported, cls.kind, base_unit, meaning)) if exported else None
        return self

    @property
    def metric(self) -> Instrument:
        """The metric that it is exported as.

        Raises:
            LookupError: it is not exported.
        """
        if self.export is None:
            raise LookupError(f"{self} is not exported: give its declaration a metric")
        return self.export.instrument


class Counter(Statistic):
    """Increases for as long as the process lives."""

    __slots__ = ()
    kind = "counter"


class Gauge(Statistic):
    """The present value."""

    __slots__ = ()


class Text(str):
    """A short text on the board, such as a version.

    ``one_of``: an enumeration; then it is exported as one series for each value, 1 for the present one and 0 else.
    """

    __slots__ = ("instrument", "label", "meaning", "one_of", "unit")
    unit: str
    meaning: str
    instrument: Instrument | None
    label: str
    one_of: tuple[str, ...]

    def __new__(
        cls,
        name: str,
        meaning: str,
        *,
        exported: str | Literal[False],
        label: str = "",
        one_of: tuple[str, ...] = (),
    ) -> Self:
        """``exported``: a metric's name, or False; ``label`` and ``one_of`` belong to a metric."""
        self = super().__new__(cls, name)
        self.unit = "text"
        self.meaning, self.label, self.one_of = meaning, label, one_of
        self.instrument = Instrument(exported, "gauge", "", meaning) if exported else None
        return self

    @property
    def metric(self) -> Instrument:
        """The metric of its values.

        Raises:
            LookupError: it is not exported.
        """
        if self.instrument is None:
            raise LookupError(f"{self} is not exported: give its declaration a metric")
        return self.instrument


StatisticT = TypeVar("StatisticT", Counter, Gauge)
# Members are made once each; a family has a bounded number of labels, and the cache is emptied should one have more.
MEMBERS_MAX = 1024


class Family(Generic[StatisticT]):
    """Statistics that differ in one label, such as drops by reason. ``*`` in ``pattern`` is the label's value."""

    def __init__(
        self,
        kind: type[StatisticT],
        pattern: str,
        unit: str,
        meaning: str,
        *,
        label: str,
        exported: str | Literal[False],
    ) -> None:
        """``label``: the attribute that names a member. ``exported``: the metric of all members, or False."""
        self.pattern, self.unit, self.meaning, self.label = pattern, unit, meaning, label
        self.prefix, _, self.suffix = pattern.partition("*")
        self.instrument = Instrument(exported, kind.kind, unit, meaning) if exported else None
        self._kind = kind
        self._members: dict[str, StatisticT] = {}

    @property
    def metric(self) -> Instrument:
        """The metric of all members.

        Raises:
            LookupError: they are not exported.
        """
        if self.instrument is None:
            raise LookupError(f"{self.pattern} is not exported: give its declaration a metric")
        return self.instrument

    def member(self, value: str) -> StatisticT:
        """The statistic with this value of the label."""
        found = self._members.get(value)
        if found is None:
            if len(self._members) >= MEMBERS_MAX:
                self._members.clear()
            name = f"{self.prefix}{value}{self.suffix}"
            export = self.instrument.of({self.label: value}) if self.instrument is not None else False
            found = self._members[value] = self._kind(name, self.unit, self.meaning, exported=export)
        return found

    def value_in(self, name: str) -> str | None:
        """The label's value in the name of a member; None for other statistics."""
        # Asked of each statistic of a report, of which few are members.
        if not name.startswith(self.prefix) or not name.endswith(self.suffix):
            return None
        return name[len(self.prefix) : len(name) - len(self.suffix)] or None
