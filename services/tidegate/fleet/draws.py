"""Durations: what ``exp:0.040``, ``lognormal:60:1``, ``fixed:0.064`` and ``hist:FILE`` mean, and endless draws of them.

``lognormal:MEAN:C`` has coefficient of variation ``C`` (sigma over mean).
A ``hist`` file holds ``{"edges_s": [...], "counts": [...]}`` (one more edge than counts): a bin is drawn by its count
and a duration uniformly inside of it.
"""

import math
from collections.abc import Iterator
from itertools import pairwise, repeat
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from tidegate.core.distributions import log_sigma
from tidegate.core.errors import ConfigError

# Large enough that a draw costs as much as reading a list; small enough that a short run does not wait for it.
BLOCK = 4096
BINS_MAX = 100_000


class Histogram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured durations: ``counts[i]`` of them lay in ``[edges_s[i], edges_s[i + 1])`` seconds."""

    edges_s: tuple[float, ...]
    counts: tuple[float, ...]


class Duration(msgspec.Struct, frozen=True):
    """A distribution of seconds. ``mean_s`` in seconds; ``spread`` is the coefficient of variation where it has one."""

    kind: Literal["fixed", "exp", "lognormal", "hist"]
    mean_s: float
    spread: float = 0.0
    histogram: Histogram | None = None

    def __str__(self) -> str:
        """As it is typed; a histogram by its mean."""
        tail = f":{self.spread:g}" if self.kind == "lognormal" else ""
        return f"{self.kind}:{self.mean_s:g}{tail}"


Draws: TypeAlias = Iterator[float]


def fixed(seconds: float) -> Duration:
    """Always as long."""
    return Duration("fixed", seconds)


def parse_duration(text: str) -> Duration:
    """Read a distribution; a bare number is ``fixed``.

    Raises:
        ConfigError: it is none of the four, or a number is negative or no number.
    """
    kind, *arguments = text.split(":", 1) if text.startswith("hist:") else text.split(":")
    match kind, arguments:
        case "hist", [path]:
            return from_histogram(_read_histogram(Path(path)))
        case "fixed" | "exp", [mean]:
            return Duration("fixed" if kind == "fixed" else "exp", _seconds(mean, text))
        case "lognormal", [mean, spread]:
            return Duration("lognormal", _seconds(mean, text), _seconds(spread, text))
        case number, []:
            return fixed(_seconds(number, text))
        case _:
            raise ConfigError(
                f"{text!r} is no distribution of durations",
                fix="write fixed:S, exp:MEAN, lognormal:MEAN:C or hist:FILE, in seconds",
            )


def from_histogram(histogram: Histogram) -> Duration:
    """Durations as they were measured.

    Raises:
        ConfigError: edges do not ascend, counts are negative or all zero, or the lengths do not fit.
    """
    edges, counts = histogram.edges_s, histogram.counts
    numbers_hold = all(math.isfinite(number) and number >= 0 for number in (*edges, *counts))
    ascending = all(lower <= upper for lower, upper in pairwise(edges))
    if not (0 < len(counts) == len(edges) - 1 <= BINS_MAX and numbers_hold and ascending and sum(counts) > 0):
        raise ConfigError(
            "A histogram of durations does not hold together",
            why="it needs ascending edges in seconds, one more than counts, and at least one count above 0",
        )
    middles = [(lower + upper) / 2 for lower, upper in pairwise(edges)]
    mean_s = sum(middle * count for middle, count in zip(middles, counts, strict=True)) / sum(counts)
    return Duration("hist", mean_s, histogram=histogram)


def draws(duration: Duration, rng: np.random.Generator) -> Draws:
    """An endless stream of durations in seconds, drawn in blocks."""
    if duration.kind == "fixed" or duration.mean_s == 0:
        return repeat(duration.mean_s)
    return _blocks(duration, rng)


def _blocks(duration: Duration, rng: np.random.Generator) -> Draws:
    while True:
        yield from _block(duration, rng).tolist()


def _block(duration: Duration, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    match duration.kind:
        case "exp":
            return rng.exponential(duration.mean_s, BLOCK)
        case "lognormal":
            sigma = log_sigma(duration.spread)
            return rng.lognormal(math.log(duration.mean_s) - sigma**2 / 2, sigma, BLOCK)
        case "hist":
            assert duration.histogram is not None, "from_histogram makes them together"
            edges = np.asarray(duration.histogram.edges_s)
            shares = np.asarray(duration.histogram.counts)
            bins = rng.choice(len(shares), size=BLOCK, p=shares / shares.sum())
            return edges[bins] + (edges[bins + 1] - edges[bins]) * rng.random(BLOCK)
        case "fixed":
            return np.full(BLOCK, duration.mean_s)


def _seconds(text: str, whole: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ConfigError(
            f"{text!r} in {whole!r} is no number of seconds", fix="write one that is 0 or above"
        )
    return number


def _read_histogram(path: Path) -> Histogram:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Histogram)
    except OSError as error:
        raise ConfigError(f"The histogram {path} cannot be read", why=str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} holds no histogram", why=str(error), fix='write {"edges_s": [...], "counts": [...]}'
        ) from error
