"""What a bench found, as values: samples, figures with their range, ratios, goals. No IO."""

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

Side = Literal["tidegate", "peer"]


class Sample(msgspec.Struct, frozen=True):
    """One measurement of one side: what was done, in how many seconds, for how many CPU-seconds of all its processes.

    ``others_cores``: how many cores other processes kept busy meanwhile, None where that was not looked at.
    ``details`` are further raw numbers by name.
    """

    side: Side
    label: str
    repetition: int
    work: float
    unit: str
    wall_s: float
    cpu_s: float
    others_cores: float | None = None
    details: dict[str, float] = {}

    @property
    def per_cpu_s(self) -> float:
        """Work a CPU-second."""
        return self.work / self.cpu_s if self.cpu_s > 0 else 0.0

    @property
    def per_s(self) -> float:
        """Work a second."""
        return self.work / self.wall_s if self.wall_s > 0 else 0.0


class Spread(msgspec.Struct, frozen=True):
    """Repetitions of one figure."""

    values: list[float]
    median: float
    min: float
    max: float


def spread(values: Sequence[float]) -> Spread | None:
    """Median and range; None without a value."""
    if not values:
        return None
    return Spread(list(values), statistics.median(values), min(values), max(values))


class Goal(msgspec.Struct, frozen=True):
    """A bound on a ratio or on the platform's own figure.

    ``every`` asks it of each repetition, otherwise the median decides.
    """

    bound: float
    direction: Literal["at_least", "at_most"]
    of: Literal["ratio", "figure"]
    every: bool = False

    def met_by(self, found: Spread) -> bool:
        """Whether the bound holds."""
        if self.direction == "at_least":
            return (found.min if self.every else found.median) >= self.bound
        return (found.max if self.every else found.median) <= self.bound


class Row(msgspec.Struct, frozen=True):
    """One figure of the table. ``met`` is None without a goal, or where nothing was measured to hold against it."""

    name: str
    unit: str
    tidegate: Spread | None
    peer: Spread | None
    ratio: Spread | None
    goal: Goal | None
    met: bool | None


def row(
    name: str, unit: str, tidegate: Sequence[float], peer: Sequence[float] = (), *, goal: Goal | None = None
) -> Row:
    """A figure of both sides; repetitions that were measured beside each other make the ratios.

    Raises:
        ValueError: the sides have different numbers of repetitions.
    """
    if peer and len(peer) != len(tidegate):
        raise ValueError(f"{name} has {len(tidegate)} repetitions of one side and {len(peer)} of the other")
    ratio = spread([ours / theirs for ours, theirs in zip(tidegate, peer, strict=False) if theirs > 0])
    ours = spread(tidegate)
    found = ratio if goal is not None and goal.of == "ratio" else ours
    return Row(
        name=name,
        unit=unit,
        tidegate=ours,
        peer=spread(peer),
        ratio=ratio,
        goal=goal,
        met=goal.met_by(found) if goal is not None and found is not None else None,
    )


class BenchResult(msgspec.Struct, frozen=True):
    """One bench. ``notes`` explain, ``table`` is text to print unchanged, ``problem`` is why it stopped."""

    name: str
    rows: list[Row]
    samples: list[Sample]
    notes: list[str] = []
    table: str = ""
    problem: str = ""
    wall_s: float = 0.0
    cpu_s: float = 0.0
