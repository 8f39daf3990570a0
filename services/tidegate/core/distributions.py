"""Durations and their distributions: the one grammar of run files, ``plan`` and ``sim``, and the values it reads to.

A duration is a number of seconds, or numbers with units: ``0.5``, ``90s``, ``250ms``, ``5m``, ``1h30m``.
A distribution of durations is one of

- ``fixed:S``: always S. A duration alone is the same.
- ``exp:MEAN``: exponential.
- ``lognormal:MEAN:C``: lognormal; C is the coefficient of variation (standard deviation over mean).
- ``hist:FILE``: as measured. Only ``plan`` and ``sim`` read files; a run file travels to other machines without them.

Values are seconds. Randomness is an argument: ``quantile(u)`` of a uniform u draws from the distribution, so the same u
gives the same time on every machine, and ``slowest_quantile(u, num=K)`` draws the slowest of K without drawing all.
"""

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import TypeAlias

import msgspec

from tidegate.core.errors import ConfigError

_NORMAL = NormalDist()
# The farthest quantiles that are distinguished: a uniform of exactly 0 or 1 would give a time that is no number.
_UNIFORM_MIN = 2.0**-53
# Beyond it a time is a typing error, and sums of such times lose their seconds.
_MEAN_S_MAX = 1e9
_SHAPE_MAX = 100.0
_BINS_MAX = 100_000
_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?)\s*(ms|h|m|s|)\s*", re.ASCII)
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
HISTOGRAM_PREFIX = "hist:"
FORMS = "fixed:S, exp:MEAN or lognormal:MEAN:C"
FORMS_WITH_FILES = "fixed:S, exp:MEAN, lognormal:MEAN:C or hist:FILE"


def log_sigma(c: float) -> float:
    """Standard deviation of the logarithm of lognormal times, sqrt(ln(1 + c²)); ``c``: theirs over their mean."""
    return math.sqrt(math.log1p(c * c))


class Fixed(msgspec.Struct, frozen=True, tag="fixed"):
    """Always ``value_s``."""

    value_s: float

    def __str__(self) -> str:
        """As it is typed."""
        return f"fixed:{self.value_s:g}"

    @property
    def mean_s(self) -> float:
        """The mean."""
        return self.value_s

    def quantile(self, share: float) -> float:
        """The time that ``share`` of the draws stay below or at."""
        del share
        return self.value_s

    def survival(self, time_s: float) -> float:
        """The share of draws longer than ``time_s``."""
        return float(time_s < self.value_s)


class Exponential(msgspec.Struct, frozen=True, tag="exponential"):
    """Memoryless: however long it has taken, ``mean_s`` more are expected."""

    mean_s: float

    def __str__(self) -> str:
        """As it is typed."""
        return f"exp:{self.mean_s:g}"

    def quantile(self, share: float) -> float:
        """The time that ``share`` of the draws stay below or at."""
        return -self.mean_s * math.log1p(-_inside(share))

    def survival(self, time_s: float) -> float:
        """The share of draws longer than ``time_s``."""
        return math.exp(-max(0.0, time_s) / self.mean_s)


class Lognormal(msgspec.Struct, frozen=True, tag="lognormal"):
    """Heavy-tailed: the longer it has taken, the more is still to come. ``c``: standard deviation over the mean."""

    mean_s: float
    c: float

    def __str__(self) -> str:
        """As it is typed."""
        return f"lognormal:{self.mean_s:g}:{self.c:g}"

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm."""
        return log_sigma(self.c)

    @property
    def mu(self) -> float:
        """Mean of the logarithm, so that the mean is ``mean_s``."""
        return math.log(self.mean_s) - 0.5 * self.sigma**2

    def quantile(self, share: float) -> float:
        """The time that ``share`` of the draws stay below or at."""
        return math.exp(self.mu + self.sigma * _NORMAL.inv_cdf(_inside(share)))

    def survival(self, time_s: float) -> float:
        """The share of draws longer than ``time_s``."""
        if time_s <= 0.0:
            return 1.0
        return _NORMAL.cdf((self.mu - math.log(time_s)) / self.sigma)


class Histogram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="histogram"):
    """Measured durations: ``counts[i]`` of them lie evenly in ``[edges_s[i], edges_s[i + 1]]`` seconds.

    A bin without width is one measured value. Nothing slower than the last edge is foreseen.
    """

    edges_s: tuple[float, ...]
    counts: tuple[float, ...]

    def __str__(self) -> str:
        """Its mean; the file that it came from is not kept."""
        return f"hist, mean {self.mean_s:g} s"

    @property
    def mean_s(self) -> float:
        """The mean."""
        middles = ((lower + upper) / 2 for lower, upper in pairwise(self.edges_s))
        return math.fsum(
            middle * count for middle, count in zip(middles, self.counts, strict=True)
        ) / math.fsum(self.counts)


Distribution: TypeAlias = Fixed | Exponential | Lognormal
# What `plan` and `sim` compute with.
Durations: TypeAlias = Distribution | Histogram


def slowest_quantile(distribution: Distribution, share: float, *, num: int) -> float:
    """A quantile of the slowest of ``num`` independent draws: all of them stay below t with probability F(t)^num."""
    return distribution.quantile(_inside(share) ** (1.0 / num))


def parse_duration(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``5m``, ``1h30m`` or ``500ms``.

    Raises:
        ConfigError: it is none of these, or not above 0.
    """
    seconds = _seconds(text)
    if seconds is None or seconds <= 0.0:
        raise ConfigError(f"Duration {text!r} cannot be read", fix="write it as 90s, 5m or 1h30m")
    return seconds


def parse_distribution(text: str) -> Distribution:
    """Read ``fixed:S``, ``exp:MEAN``, ``lognormal:MEAN:C``, or a duration alone, which is fixed.

    Raises:
        ConfigError: it is none of them, or a number is out of range; the message names it.
    """
    name, *numbers = text.strip().split(":")
    if not numbers and _seconds(name) is not None:
        name, numbers = "fixed", [name]
    if name == "hist":
        raise _refusal(text, why="hist:FILE is for `plan` and `sim`: a run file travels without other files")
    expected = {"fixed": 1, "exp": 1, "lognormal": 2}.get(name)
    if expected is None:
        raise _refusal(text, why=f"there is no distribution {name[:40]!r}")
    if len(numbers) != expected:
        raise _refusal(text, why=f"{name} takes {expected} number(s), not {len(numbers)}")
    mean_s = _seconds(numbers[0])
    if mean_s is None or mean_s > _MEAN_S_MAX or (mean_s == 0.0 and name != "fixed"):
        raise _refusal(text, why=f"{numbers[0][:40]} is no time in seconds")
    match name:
        case "fixed":
            return Fixed(mean_s)
        case "exp":
            return Exponential(mean_s)
        case _:
            return Lognormal(mean_s, _shape(numbers[1], text))


def histogram_file(text: str) -> str | None:
    """FILE of ``hist:FILE``; None for every other text."""
    stripped = text.strip()
    return stripped.removeprefix(HISTOGRAM_PREFIX) if stripped.startswith(HISTOGRAM_PREFIX) else None


def check_histogram(histogram: Histogram) -> Histogram:
    """A histogram that can be one.

    Raises:
        ConfigError: edges do not ascend, counts are negative or all zero, or the lengths do not fit.
    """
    edges, counts = histogram.edges_s, histogram.counts
    numbers_hold = all(math.isfinite(number) and number >= 0 for number in (*edges, *counts))
    ascending = all(lower <= upper for lower, upper in pairwise(edges))
    if not (
        0 < len(counts) == len(edges) - 1 <= _BINS_MAX and numbers_hold and ascending and sum(counts) > 0
    ):
        raise ConfigError(
            "A histogram of durations is inconsistent",
            why="it needs ascending edges in seconds, one more than counts, and at least one count above 0",
        )
    return histogram


def histogram_of(durations_s: Sequence[float]) -> Histogram:
    """Measured durations, each as likely.

    Raises:
        ConfigError: there are none, or one is no duration.
    """
    if not durations_s:
        raise ConfigError("There is no measured duration", fix="give one number of seconds a line")
    wrong = next((each for each in durations_s if not (math.isfinite(each) and each >= 0.0)), None)
    if wrong is not None:
        raise ConfigError(f"A measured duration of {wrong:g} s is none", fix="give seconds, 0 or more")
    # Each value is a bin without width, and the bin between two values is empty.
    edges = tuple(value for value in sorted(durations_s) for _ in range(2))
    return Histogram(edges_s=edges, counts=(1.0, *(0.0, 1.0) * (len(durations_s) - 1)))


def _seconds(text: str) -> float | None:
    """Seconds of a duration, 0 or more; None where the text is none."""
    stripped = text.strip()
    try:
        seconds = float(stripped)
    except ValueError:
        parts = list(_DURATION_PART.finditer(stripped))
        if not parts or "".join(part[0] for part in parts) != stripped:
            return None
        seconds = sum(float(part[1]) * _UNIT_S[part[2]] for part in parts)
    return seconds if math.isfinite(seconds) and seconds >= 0.0 else None


def _shape(text: str, whole: str) -> float:
    try:
        shape = float(text)
    except ValueError as error:
        raise _refusal(whole, why=f"C is {text[:40]!r}, which is no number") from error
    if not 0.0 < shape <= _SHAPE_MAX:
        raise _refusal(whole, why=f"C is {shape:g}, and must be above 0 and at most {_SHAPE_MAX:g}")
    return shape


def _refusal(text: str, *, why: str) -> ConfigError:
    return ConfigError(
        f"{text[:80]!r} is no distribution of times",
        why=why,
        fix=f"write {FORMS}, numbers in seconds or as 250ms",
    )


def _inside(share: float) -> float:
    return min(1.0 - _UNIFORM_MIN, max(_UNIFORM_MIN, share))
