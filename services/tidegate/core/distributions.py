"""How long something takes, as a named distribution that a run file writes in one word.

``fixed:S``, ``exp:MEAN_S`` and ``lognormal:MEAN_S:C`` (C is the standard deviation over the mean). All times are
seconds. Chance is an argument: ``quantile(u)`` of a uniform u draws from the distribution, so the same u gives the same
time on every machine, and ``slowest_quantile(u, num=K)`` draws the slowest of K without drawing all of them.
"""

import math
from statistics import NormalDist
from typing import TypeAlias

import msgspec

from tidegate.core.errors import ConfigError

_NORMAL = NormalDist()
# The farthest quantiles that are told apart: a uniform of exactly 0 or 1 would give a time that is no number.
_UNIFORM_MIN = 2.0**-53
# Beyond it a time is a typing error, and sums of such times lose their seconds.
_MEAN_S_MAX = 1e9
_SHAPE_MAX = 100.0
FORMS = "fixed:S, exp:MEAN_S or lognormal:MEAN_S:C"


def log_sigma(c: float) -> float:
    """Standard deviation of the logarithm of lognormal times, sqrt(ln(1 + c²)); ``c``: theirs over their mean."""
    return math.sqrt(math.log1p(c * c))


class Fixed(msgspec.Struct, frozen=True):
    """Always ``value_s``."""

    value_s: float

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


class Exponential(msgspec.Struct, frozen=True):
    """Memoryless: however long it has taken, ``mean_s`` more are expected."""

    mean_s: float

    def quantile(self, share: float) -> float:
        """The time that ``share`` of the draws stay below or at."""
        return -self.mean_s * math.log1p(-_inside(share))

    def survival(self, time_s: float) -> float:
        """The share of draws longer than ``time_s``."""
        return math.exp(-max(0.0, time_s) / self.mean_s)


class Lognormal(msgspec.Struct, frozen=True):
    """Heavy-tailed: the longer it has taken, the more is still to come. ``c``: standard deviation over the mean."""

    mean_s: float
    c: float

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


Distribution: TypeAlias = Fixed | Exponential | Lognormal


def slowest_quantile(distribution: Distribution, share: float, *, num: int) -> float:
    """A quantile of the slowest of ``num`` independent draws: all of them stay below t with probability F(t)^num."""
    return distribution.quantile(_inside(share) ** (1.0 / num))


def parse_distribution(text: str) -> Distribution:
    """Read ``fixed:S``, ``exp:MEAN_S`` or ``lognormal:MEAN_S:C``.

    Raises:
        ConfigError: it is none of them, or a number is out of range; the message says which.
    """
    name, *numbers = text.strip().split(":")
    try:
        values = [float(number) for number in numbers]
    except ValueError as error:
        raise _refusal(text, why=f"{error}") from error
    expected = {"fixed": 1, "exp": 1, "lognormal": 2}.get(name)
    if expected is None:
        raise _refusal(text, why=f"there is no distribution {name[:40]!r}")
    if len(values) != expected:
        raise _refusal(text, why=f"{name} takes {expected} number(s), not {len(values)}")
    mean_s = values[0]
    # The comparisons are written so that a value that is not a number fails them.
    if not (0.0 <= mean_s <= _MEAN_S_MAX if name == "fixed" else 0.0 < mean_s <= _MEAN_S_MAX):
        raise _refusal(text, why=f"{mean_s:g} is no time in seconds")
    if name == "lognormal" and not 0.0 < values[1] <= _SHAPE_MAX:
        raise _refusal(text, why=f"C is {values[1]:g}, and must be above 0 and at most {_SHAPE_MAX:g}")
    match name:
        case "fixed":
            return Fixed(mean_s)
        case "exp":
            return Exponential(mean_s)
        case _:
            return Lognormal(mean_s, values[1])


def _refusal(text: str, *, why: str) -> ConfigError:
    return ConfigError(
        f"{text[:80]!r} is no distribution of times", why=why, fix=f"write {FORMS}, in seconds"
    )


def _inside(share: float) -> float:
    return min(1.0 - _UNIFORM_MIN, max(_UNIFORM_MIN, share))
