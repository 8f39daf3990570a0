"""How long the slowest of K draws takes: what a synchronous step waits for.

Means are seconds, ``cv`` is the coefficient of variation c = σ/μ (0 is a constant; 1 is an exponential's). The mean of
the maximum is exact for exponentials (μ·H_K), for constants and for measured draws, and integrated numerically for
lognormals. Beside it stand two extreme-value approximations, because they are what people quote and they are rough
where K is small: ``leading`` keeps the first term only, ``gumbel`` the location and the spread of the limit law.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from tidegate.core.distributions import log_sigma
from tidegate.core.errors import ConfigError

EULER_GAMMA = 0.5772156649015329
HARMONIC_TERMS_MAX = 10_000
# Simpson's rule over the standard normal's quantiles: past nine deviations a side nothing is left in double precision
# (the upper end is moved by the tilt of the lognormal); 2,000 intervals agree with 20,000 to ten digits for cv <= 10.
DEVIATIONS = 9.0
INTERVALS = 2_000
CV_MAX = 10.0


class Exponential(msgspec.Struct, frozen=True, tag="exponential"):
    """Memoryless durations of a mean."""

    mean_s: float


class Lognormal(msgspec.Struct, frozen=True, tag="lognormal"):
    """Durations whose logarithm is normal, by their mean and coefficient of variation c = σ/μ."""

    mean_s: float
    cv: float

    @property
    def log_sd(self) -> float:
        """Standard deviation s of the logarithm."""
        return log_sigma(self.cv)


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    """Durations as they were measured, ascending. Nothing slower than the slowest of them is foreseen."""

    sorted_s: tuple[float, ...]

    @property
    def mean_s(self) -> float:
        """Mean duration."""
        return math.fsum(self.sorted_s) / len(self.sorted_s)


Durations: TypeAlias = Exponential | Lognormal | Measured


class Tail(msgspec.Struct, frozen=True):
    """The mean of the slowest of ``num_draws``, and what the approximations make of it (None where there is none).

    Errors are relative to the exact mean.
    """

    num_draws: int
    mean_s: float
    max_s: float
    leading_s: float | None
    leading_error: float | None
    gumbel_s: float | None
    gumbel_error: float | None


def constant(mean_s: float) -> Lognormal:
    """A duration that does not vary."""
    return lognormal(mean_s, cv=0.0)


def exponential(mean_s: float) -> Exponential:
    """Exponential durations.

    Raises:
        ConfigError: the mean is no positive number.
    """
    return Exponential(_positive(mean_s, "The mean of an exponential"))


def lognormal(mean_s: float, *, cv: float) -> Lognormal:
    """Lognormal durations; ``cv`` 0 is a constant.

    Raises:
        ConfigError: the mean is negative, or ``cv`` is outside of [0, 10].
    """
    if not 0.0 <= cv <= CV_MAX:
        raise ConfigError(
            f"A coefficient of variation of {cv:g} is outside of 0 to {CV_MAX:g}",
            why="it is the standard deviation over the mean",
            fix="rollouts of language models lie between 0.5 and 2",
        )
    if not (math.isfinite(mean_s) and mean_s >= 0.0):
        raise ConfigError(f"A mean of {mean_s:g} s is no duration", fix="give seconds, 0 or more")
    return Lognormal(mean_s, cv)


def measured(draws_s: Sequence[float]) -> Measured:
    """Durations from a measurement.

    Raises:
        ConfigError: there are none, or one is no duration.
    """
    if not draws_s:
        raise ConfigError("There is no measured duration", fix="give one number of seconds a line")
    wrong = next((draw for draw in draws_s if not (math.isfinite(draw) and draw >= 0.0)), None)
    if wrong is not None:
        raise ConfigError(f"A measured duration of {wrong:g} s is none", fix="give seconds, 0 or more")
    return Measured(tuple(sorted(draws_s)))


def harmonic(count: int) -> float:
    """H_n = 1 + 1/2 + ... + 1/n; for many terms by Euler and Maclaurin, to the last digit."""
    if count > HARMONIC_TERMS_MAX:
        return math.log(count) + EULER_GAMMA + 1.0 / (2.0 * count) - 1.0 / (12.0 * count * count)
    return math.fsum(1.0 / number for number in range(1, count + 1))


def mean_of_max(durations: Durations, *, num_draws: int) -> float:
    """Expected seconds of the slowest of ``num_draws`` independent draws.

    Raises:
        ConfigError: there is no draw to be the slowest.
    """
    if num_draws < 1:
        raise ConfigError(f"The slowest of {num_draws} draws is nobody", fix="wait for 1 or more")
    match durations:
        case Exponential(mean_s=mean_s):
            return mean_s * harmonic(num_draws)
        case Lognormal():
            return _lognormal_max(durations, num_draws)
        case Measured(sorted_s=sorted_s):
            return _measured_max(sorted_s, num_draws)


def tail_of(durations: Durations, *, num_draws: int) -> Tail:
    """The exact mean of the maximum with its approximations beside it."""
    max_s = mean_of_max(durations, num_draws=num_draws)
    leading_s, gumbel_s = _leading(durations, num_draws), _gumbel(durations, num_draws)
    return Tail(
        num_draws=num_draws,
        mean_s=durations.mean_s,
        max_s=max_s,
        leading_s=leading_s,
        leading_error=_error(leading_s, max_s),
        gumbel_s=gumbel_s,
        gumbel_error=_error(gumbel_s, max_s),
    )


def cv_of(durations: Durations) -> float:
    """Coefficient of variation c = σ/μ; 0 of durations that are all zero."""
    match durations:
        case Exponential():
            return 1.0
        case Lognormal(cv=cv):
            return cv
        case Measured(sorted_s=sorted_s):
            mean_s = durations.mean_s
            if mean_s <= 0.0:
                return 0.0
            return math.sqrt(math.fsum((draw - mean_s) ** 2 for draw in sorted_s) / len(sorted_s)) / mean_s


def _lognormal_max(durations: Lognormal, num_draws: int) -> float:
    """∫ μ·exp(s·z − s²/2)·K·φ(z)·Φ(z)^(K−1) dz; the exponential tilts φ, so z is counted from s."""
    s = durations.log_sd
    if s == 0.0 or durations.mean_s == 0.0:
        return durations.mean_s
    # exp(s z − s²/2) φ(z) = φ(z − s): the density of the tilted normal, which the weight below multiplies.
    low, high = -DEVIATIONS, DEVIATIONS + math.sqrt(2.0 * math.log(num_draws))
    step = (high - low) / INTERVALS
    terms: list[float] = []
    for index in range(INTERVALS + 1):
        y = low + index * step
        weight = 1.0 if index in (0, INTERVALS) else (4.0 if index % 2 else 2.0)
        terms.append(weight * _normal_density(y) * _normal_below(y + s) ** (num_draws - 1))
    return durations.mean_s * num_draws * math.fsum(terms) * step / 3.0


def _measured_max(sorted_s: tuple[float, ...], num_draws: int) -> float:
    """Drawing with replacement: the i-th of n is the slowest with probability (i/n)^K − ((i−1)/n)^K."""
    count = len(sorted_s)
    return math.fsum(
        draw * ((rank / count) ** num_draws - ((rank - 1) / count) ** num_draws)
        for rank, draw in enumerate(sorted_s, start=1)
    )


def _leading(durations: Durations, num_draws: int) -> float | None:
    """First term: μ·ln K, and μ·exp(s·√(2 ln K) − s²/2) for lognormals."""
    match durations:
        case Exponential(mean_s=mean_s):
            return mean_s * math.log(num_draws)
        case Lognormal(mean_s=mean_s):
            s = durations.log_sd
            return mean_s * math.exp(s * math.sqrt(2.0 * math.log(num_draws)) - s * s / 2.0)
        case Measured():
            return None


def _gumbel(durations: Durations, num_draws: int) -> float | None:
    """The limit law: μ(ln K + γ); for lognormals exp(m + s·b)·Γ(1 − s/a), a = √(2 ln K), b = a − ln(4π ln K)/2a.

    None where the law has no mean (s ≥ a) or no draws to be the largest of.
    """
    match durations:
        case Exponential(mean_s=mean_s):
            return mean_s * (math.log(num_draws) + EULER_GAMMA)
        case Lognormal(mean_s=mean_s):
            s, a = durations.log_sd, math.sqrt(2.0 * math.log(num_draws))
            if num_draws < 2 or s >= a:
                return None
            b = a - math.log(4.0 * math.pi * math.log(num_draws)) / (2.0 * a)
            return mean_s * math.exp(s * b - s * s / 2.0) * math.gamma(1.0 - s / a)
        case Measured():
            return None


def _error(approximation_s: float | None, exact_s: float) -> float | None:
    if approximation_s is None or exact_s <= 0.0:
        return None
    return approximation_s / exact_s - 1.0


def _normal_density(z: float) -> float:
    return math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)


def _normal_below(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def _positive(value: float, what: str) -> float:
    if not (math.isfinite(value) and value > 0.0):
        raise ConfigError(f"{what} is {value:g} s", fix="give a positive number of seconds")
    return value
