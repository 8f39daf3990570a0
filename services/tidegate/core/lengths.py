"""Estimates how much of a rollout is still to come, given its length so far, from measured lengths.

Lengths of one kind (tokens, steps, or seconds: the arithmetic is the same) are counted in log-spaced buckets with
exponential forgetting, for each curriculum bin apart and for all together. A rollout that was stopped before its end
shows only that it would have been longer; such *censored* lengths count among those at risk and never among the ends
(the life-table form of Kaplan and Meier 1958). Without that, cutting long rollouts would make them appear not to exist,
and the next ones would be cut sooner.

Memory: 2 x 121 numbers a bin, at most ``NUM_BINS_MAX`` bins; further bins share the one named ``other``.
"""

import math
from bisect import bisect_right
from itertools import accumulate

import msgspec

# From a millisecond (or a thousandth of a token) to 2^30 times that, in steps of 19 %, with a constant hazard inside of
# each: conditional means and chances come out within 1-3 % of closed forms (tests/unit/core/test_lengths.py).
_LOWEST = 1e-3
_PER_OCTAVE = 4
_NUM_OCTAVES = 30
_EDGES = (0.0, *(_LOWEST * 2.0 ** (step / _PER_OCTAVE) for step in range(_PER_OCTAVE * _NUM_OCTAVES + 1)))
_NUM_BUCKETS = len(_EDGES) - 1

NUM_BINS_MAX = 64
OTHER_BIN = "other"
# With fewer rollouts at risk than this (effective, after forgetting) an estimate is mostly noise; the answer is None.
AT_RISK_MIN = 5.0
# Lengths that a bin needs before its curve replaces the common curve of all bins.
BIN_COUNT_MIN = 20.0
# Weights grow with every length instead of all counts shrinking; before they overflow, everything is scaled back.
_WEIGHT_MAX = 1e100


class SurvivalCurve(msgspec.Struct, frozen=True):
    """The share of rollouts longer than x, known from 0 to ``horizon``.

    ``shares[i]`` belongs to the i-th edge; between edges the hazard is constant. Beyond the horizon too few rollouts
    were ever seen to be significant.
    """

    shares: tuple[float, ...]
    horizon: float

    def survival(self, length: float) -> float:
        """The share longer than ``length``; past the horizon, the share at the horizon (an upper bound)."""
        length = min(max(0.0, length), self.horizon)
        bucket = _bucket(length)
        if bucket + 1 >= len(self.shares):
            return self.shares[-1]
        low, high = _EDGES[bucket], _EDGES[bucket + 1]
        return _between(self.shares[bucket], self.shares[bucket + 1], inside=(length - low) / (high - low))

    def finish_chance(self, length: float, *, within: float) -> float | None:
        """How likely a rollout that is ``length`` long ends within ``within`` more; None when nothing is known of it.

        What may happen beyond the horizon counts as an end: a caller that cuts on this answer errs towards waiting.
        """
        alive = self._alive(length)
        if alive is None:
            return None
        if length + within >= self.horizon:
            return 1.0
        return 1.0 - self.survival(length + within) / alive

    def remaining_quantile(self, length: float, *, share: float) -> float | None:
        """How much more ``share`` of the rollouts that are ``length`` long take at most; None when it is not known."""
        alive = self._alive(length)
        if alive is None:
            return None
        target = alive * (1.0 - share)
        # Shares fall, so the first edge at or below the target ends the bucket that holds the answer.
        for edge in range(_bucket(length) + 1, len(self.shares)):
            if self.shares[edge] <= target:
                inside = _where_between(self.shares[edge - 1], self.shares[edge], target=target)
                reached = _EDGES[edge - 1] + inside * (_EDGES[edge] - _EDGES[edge - 1])
                return max(0.0, reached - length)
        return None

    def mean_remaining(self, length: float) -> float | None:
        """The mean of what is still to come, as far as the horizon shows it (a lower bound when some live beyond)."""
        alive = self._alive(length)
        if alive is None:
            return None
        first = _bucket(length)
        points = [length, *_EDGES[first + 1 : len(self.shares)]]
        values = [alive, *self.shares[first + 1 :]]
        area = sum(
            _mean_between(values[at], values[at + 1]) * (points[at + 1] - points[at])
            for at in range(len(points) - 1)
        )
        return area / alive

    def _alive(self, length: float) -> float | None:
        if length >= self.horizon:
            return None
        alive = self.survival(length)
        return alive if alive > 0.0 else None


UNKNOWN = SurvivalCurve(shares=(1.0,), horizon=0.0)


class LengthCounts:
    """The lengths of one bin: how many ended and how many were cut in each bucket, the latest counting most."""

    def __init__(self, *, half_life: float) -> None:
        """After ``half_life`` further lengths, one counts half."""
        self._ended = [0.0] * _NUM_BUCKETS
        self._censored = [0.0] * _NUM_BUCKETS
        self._weight = 1.0
        self._growth = 2.0 ** (1.0 / half_life)
        self._curve: SurvivalCurve | None = None

    def observe(self, length: float, *, ended: bool) -> None:
        """One more rollout: it ended at ``length``, or was stopped there before its end."""
        counts = self._ended if ended else self._censored
        counts[_bucket(length)] += self._weight
        self._weight *= self._growth
        self._curve = None
        if self._weight > _WEIGHT_MAX:
            self._ended = [count / self._weight for count in self._ended]
            self._censored = [count / self._weight for count in self._censored]
            self._weight = 1.0

    @property
    def effective_count(self) -> float:
        """Lengths that count, after forgetting."""
        return (sum(self._ended) + sum(self._censored)) / self._weight

    def curve(self) -> SurvivalCurve:
        """The survival curve of what was observed so far."""
        if self._curve is None:
            self._curve = _life_table(self._ended, self._censored, at_risk_min=AT_RISK_MIN * self._weight)
        return self._curve


def _life_table(ended: list[float], censored: list[float], *, at_risk_min: float) -> SurvivalCurve:
    """Kaplan-Meier on buckets: those stopped inside a bucket were at risk for half of it (the actuarial rule)."""
    gone = [ended[at] + censored[at] for at in range(_NUM_BUCKETS)]
    at_risk = list(accumulate(reversed(gone)))[::-1]
    shares = [1.0]
    for bucket in range(_NUM_BUCKETS):
        exposed = at_risk[bucket] - 0.5 * censored[bucket]
        if at_risk[bucket] < at_risk_min or exposed <= 0.0:
            break
        shares.append(shares[-1] * max(0.0, 1.0 - ended[bucket] / exposed))
    return SurvivalCurve(shares=tuple(shares), horizon=_EDGES[len(shares) - 1])


class LengthPredictor:
    """One unit of length, by curriculum bin. A bin with too few lengths uses the curve of all bins together."""

    def __init__(self, *, half_life: float) -> None:
        """``half_life`` in rollouts of a bin."""
        self._half_life = half_life
        self._all = LengthCounts(half_life=half_life)
        self._bins: dict[str, LengthCounts] = {}

    def observe(self, bin_name: str, length: float, *, ended: bool = True) -> None:
        """One more rollout of a bin; ``ended`` is False when it was stopped before its end."""
        if not length >= 0.0 or math.isinf(length):  # a clock that stepped back gives no length
            return
        self._all.observe(length, ended=ended)
        if bin_name not in self._bins and len(self._bins) >= NUM_BINS_MAX:
            bin_name = OTHER_BIN
        counts = self._bins.get(bin_name)
        if counts is None:
            counts = self._bins[bin_name] = LengthCounts(half_life=self._half_life)
        counts.observe(length, ended=ended)

    def curve(self, bin_name: str) -> SurvivalCurve:
        """What is known about a bin; ``UNKNOWN`` before the first lengths."""
        counts = self._bins.get(bin_name) or self._bins.get(OTHER_BIN)
        if counts is None or counts.effective_count < BIN_COUNT_MIN:
            counts = self._all
        return counts.curve()


def length_bucket(length: int) -> str:
    """The name under which rollouts of a length are counted: ``0``, ``1``, ``2-3``, ``4-7`` ... ``524288+``."""
    if length < 2:
        return str(max(0, length))
    octave = min(length.bit_length() - 1, 19)
    low = 1 << octave
    return f"{low}+" if octave == 19 else f"{low}-{2 * low - 1}"


def _bucket(length: float) -> int:
    return min(bisect_right(_EDGES, length) - 1, _NUM_BUCKETS - 1)


def _between(high: float, low: float, *, inside: float) -> float:
    """The share ``inside`` of the way between two edges; where the last ones end, in a straight line to nothing."""
    if low <= 0.0:
        return high * (1.0 - inside)
    return high * (low / high) ** inside


def _where_between(high: float, low: float, *, target: float) -> float:
    """The inverse of ``_between`` in ``inside``."""
    if high <= low or target >= high:
        return 0.0
    if low <= 0.0:
        return 1.0 - target / high
    return math.log(target / high) / math.log(low / high)


def _mean_between(high: float, low: float) -> float:
    """The mean share between two edges."""
    if low <= 0.0 or high - low < 1e-9 * high:
        return 0.5 * (high + low)
    return (high - low) / math.log(high / low)
