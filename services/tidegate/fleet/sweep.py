"""A sweep over one setting in both modes, and its crossovers.

More actors **stop helping** at the first point of a sweep from which one percent more actors bring less than
``GAIN_MIN`` percent more samples a second. Lag **passes the bound** at the first point where its mean exceeds it.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.fleet.modes import in_mode
from tidegate.fleet.plan import FleetPlan
from tidegate.fleet.report import FleetReport, Mode, simulate_fleet

GAIN_MIN = 0.05
POINTS_MAX = 1000

Setting: TypeAlias = Literal["actors", "batch", "max-lag", "replicas", "environments"]
SETTINGS: tuple[Setting, ...] = ("actors", "batch", "max-lag", "replicas", "environments")

# Makes the plan of one point: of a value, in a mode.
PlanMaker: TypeAlias = Callable[[int, Mode], FleetPlan]


class Axis(msgspec.Struct, frozen=True):
    """The varied setting and its values."""

    setting: Setting
    values: tuple[int, ...]


class Point(msgspec.Struct, frozen=True):
    """Both modes at one value."""

    value: int
    sync: FleetReport
    asynchronous: FleetReport


class FleetSweep(msgspec.Struct, frozen=True):
    """All points, and the crossovers; None where a curve does not cross inside of the sweep."""

    setting: Setting
    points: tuple[Point, ...]
    lag_bound: float | None
    sync_stops_helping_at: int | None
    async_stops_helping_at: int | None
    lag_passes_bound_at: int | None


def parse_axis(text: str) -> Axis:
    """Read ``actors=2..64`` (doubling), ``actors=2..64:all`` (every one) or ``actors=2,3,5``.

    Raises:
        ConfigError: the setting is unknown, or the values are no ascending positive numbers.
    """
    setting, _, values_text = text.partition("=")
    known: Setting | None = next((name for name in SETTINGS if name == setting), None)
    if known is None:
        raise ConfigError(f"{setting!r} cannot be swept", fix=f"sweep one of {', '.join(SETTINGS)}")
    values = _values(values_text, text)
    lowest = 0 if known in ("max-lag", "environments") else 1
    ascending = all(lower < upper for lower, upper in pairwise(values))
    if not values or values[0] < lowest or not ascending or len(values) > POINTS_MAX:
        raise ConfigError(
            f"{values_text!r} are no ascending numbers from {lowest} (at most {POINTS_MAX} of them)",
            fix=f"write {setting}=2..64, {setting}=2..64:all or {setting}=2,3,5",
        )
    return Axis(setting=known, values=values)


def _values(text: str, whole: str) -> tuple[int, ...]:
    try:
        if ".." not in text:
            return tuple(int(part) for part in text.split(","))
        first_text, _, rest = text.partition("..")
        last_text, _, step = rest.partition(":")
        first, last = int(first_text), int(last_text)
    except ValueError as error:
        raise ConfigError(f"{whole!r} is no sweep", fix="write actors=2..64") from error
    if step == "all":
        return tuple(range(first, min(last, first + POINTS_MAX) + 1))
    if step:
        raise ConfigError(f"{step!r} in {whole!r} is no way to step", fix="write nothing, or :all")
    if first > last:
        return ()
    values: list[int] = []
    value = first
    while value < last:
        values.append(value)
        value = max(value + 1, 2 * value)
    return (*values, last)


def with_setting(
    plan: FleetPlan, setting: Setting, value: int, *, mode: Mode, batch_size: int | None, max_lag: int | None
) -> FleetPlan:
    """``plan`` with one setting changed, as synchronous or asynchronous training (see ``modes.in_mode``)."""
    changes: dict[str, int] = {}
    match setting:
        case "batch":
            batch_size = value
        case "max-lag":
            max_lag = value
        case "actors" | "replicas" | "environments":
            changes[setting] = value
    return in_mode(msgspec.structs.replace(plan, **changes), mode, batch_size=batch_size, max_lag=max_lag)


def run_sweep(axis: Axis, make_plan: PlanMaker, *, horizon_s: float, lag_bound: float | None) -> FleetSweep:
    """Simulate every point in both modes.

    Raises:
        ConfigError: one of the fleets makes no progress.
    """
    points = tuple(
        Point(
            value,
            sync=simulate_fleet(make_plan(value, "sync"), horizon_s=horizon_s),
            asynchronous=simulate_fleet(make_plan(value, "async"), horizon_s=horizon_s),
        )
        for value in axis.values
    )
    is_actors = axis.setting == "actors"
    return FleetSweep(
        setting=axis.setting,
        points=points,
        lag_bound=lag_bound,
        sync_stops_helping_at=stops_helping([(point.value, point.sync) for point in points])
        if is_actors
        else None,
        async_stops_helping_at=stops_helping([(point.value, point.asynchronous) for point in points])
        if is_actors
        else None,
        lag_passes_bound_at=None
        if lag_bound is None
        else next((point.value for point in points if point.asynchronous.lag_mean > lag_bound), None),
    )


def stops_helping(points: Sequence[tuple[int, FleetReport]]) -> int | None:
    """The first number of actors from which more of them gain less than ``GAIN_MIN`` of their share."""
    for (actors, report), (more, better) in pairwise(points):
        gain = better.samples_per_s / max(report.samples_per_s, 1e-12) - 1
        if gain < GAIN_MIN * (more / actors - 1):
            return actors
    return None


def crossovers(sweep: FleetSweep) -> list[str]:
    """The crossovers of a sweep, one sentence each."""
    sentences: list[str] = []
    if sweep.setting == "actors":
        for mode, at in (
            ("synchronous", sweep.sync_stops_helping_at),
            ("asynchronous", sweep.async_stops_helping_at),
        ):
            sentences.append(
                f"More actors stop helping {mode} training from {at} on."
                if at is not None
                else f"More actors help {mode} training over the whole sweep."
            )
    if sweep.lag_bound is not None:
        sentences.append(
            f"The mean lag of asynchronous training passes {sweep.lag_bound:g} at"
            f" {sweep.setting} = {sweep.lag_passes_bound_at}."
            if sweep.lag_passes_bound_at is not None
            else f"The mean lag of asynchronous training stays at or below {sweep.lag_bound:g}."
        )
    return sentences
