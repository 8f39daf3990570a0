"""How long the slowest of K draws takes: what a synchronous step waits for.

Means are seconds. The mean of the maximum is exact for exponentials (μ·H_K), for fixed times and for histograms, and
integrated numerically for lognormals. Two extreme-value approximations are reported with it, because papers quote
them and they are rough where K is small: ``leading`` keeps the first term only, ``gumbel`` the location and the spread
of the limit law.
"""

import math
from itertools import pairwise

import msgspec

from tidegate.core.distributions import Durations, Exponential, Fixed, Histogram, Lognormal
from tidegate.core.errors import ConfigError

EULER_GAMMA = 0.5772156649015329
HARMONIC_TERMS_MAX = 10_000
# Simpson's rule over the standard normal's quantiles: past nine deviations a side nothing is left in double precision
# (the upper end is moved by the tilt of the lognormal); 2,000 intervals agree with 20,000 to ten digits for cv <= 10.
DEVIATIONS = 9.0
INTERVALS = 2_000
SHAPE_MAX = 10.0


class Tail(msgspec.Struct, frozen=True):
    """The mean of the slowest of ``num_draws``, and its approximations (None where there is none).

    Errors are relative to the exact mean.
    """

    num_draws: int
    mean_s: float
    max_s: float
    leading_s: float | None
    leading_error: float | None
    gumbel_s: float | None
    gumbel_error: float | None


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
        raise ConfigError(f"The slowest of {num_draws} draws is undefined", fix="wait for 1 or more")
    match durations:
        case Fixed(value_s=value_s):
            return value_s
        case Exponential(mean_s=mean_s):
            return mean_s * harmonic(num_draws)
        case Lognormal():
            return _lognormal_max(durations, num_draws)
        case Histogram():
            return _histogram_max(durations, num_draws)


def tail_of(durations: Durations, *, num_draws: int) -> Tail:
    """The exact mean of the maximum and its approximations."""
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


def _lognormal_max(durations: Lognormal, num_draws: int) -> float:
    """∫ μ·exp(s·z − s²/2)·K·φ(z)·Φ(z)^(K−1) dz; the exponential tilts φ, so z is counted from s."""
    s = durations.sigma
    # exp(s z − s²/2) φ(z) = φ(z − s): the density of the tilted normal, which the weight below multiplies.
    low, high = -DEVIATIONS, DEVIATIONS + math.sqrt(2.0 * math.log(num_draws))
    step = (high - low) / INTERVALS
    terms: list[float] = []
    for index in range(INTERVALS + 1):
        y = low + index * step
        weight = 1.0 if index in (0, INTERVALS) else (4.0 if index % 2 else 2.0)
        terms.append(weight * _normal_density(y) * _normal_below(y + s) ** (num_draws - 1))
    return durations.mean_s * num_draws * math.fsum(terms) * step / 3.0


def _histogram_max(durations: Histogram, num_draws: int) -> float:
    """∫ 1 − F(t)^K dt.

    In a bin of width w F rises from p to q on a line: ∫ F^K = w·(q^(K+1) − p^(K+1))/((K + 1)·(q − p)).
    A bin without width, which is one measured value, is drawn with replacement like all others.
    """
    total = math.fsum(durations.counts)
    max_s = durations.edges_s[0]
    seen = 0.0
    for (lower, upper), count in zip(pairwise(durations.edges_s), durations.counts, strict=True):
        p, q = seen / total, (seen + count) / total
        seen += count
        if upper > lower:
            power = num_draws + 1
            below = (q**power - p**power) / (power * (q - p)) if q > p else q**num_draws
            max_s += (upper - lower) * (1.0 - below)
    return max_s


def _leading(durations: Durations, num_draws: int) -> float | None:
    """First term: μ·ln K, and μ·exp(s·√(2 ln K) − s²/2) for lognormals."""
    match durations:
        case Exponential(mean_s=mean_s):
            return mean_s * math.log(num_draws)
        case Lognormal(mean_s=mean_s):
            s = durations.sigma
            return mean_s * math.exp(s * math.sqrt(2.0 * math.log(num_draws)) - s * s / 2.0)
        case Fixed() | Histogram():
            return None


def _gumbel(durations: Durations, num_draws: int) -> float | None:
    """The limit law: μ(ln K + γ); for lognormals exp(m + s·b)·Γ(1 − s/a), a = √(2 ln K), b = a − ln(4π ln K)/2a.

    None where the law has no mean (s ≥ a) or no draws to be the largest of.
    """
    match durations:
        case Exponential(mean_s=mean_s):
            return mean_s * (math.log(num_draws) + EULER_GAMMA)
        case Lognormal(mean_s=mean_s):
            s, a = durations.sigma, math.sqrt(2.0 * math.log(num_draws))
            if num_draws < 2 or s >= a:
                return None
            b = a - math.log(4.0 * math.pi * math.log(num_draws)) / (2.0 * a)
            return mean_s * math.exp(s * b - s * s / 2.0) * math.gamma(1.0 - s / a)
        case Fixed() | Histogram():
            return None


def _error(approximation_s: float | None, exact_s: float) -> float | None:
    if approximation_s is None or exact_s <= 0.0:
        return None
    return approximation_s / exact_s - 1.0


def _normal_density(z: float) -> float:
    return math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)


def _normal_below(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))
