"""Distribution drift: whether the trained work still has the mix of the requested work.

The divergence of Jensen and Shannon in bits: 0 for equal mixes, 1 for mixes without a common bin (Lin 1991).

What is compared is the *decided* work of one window: all that became terminal in it (trained, or dropped for any
reason) against the trained part of it. Comparing what was admitted with what was trained in the same window would count
work in flight as drift: a slow bin is merely behind, and every start of a run and every change of the curriculum would
be a breach. Work that is not terminal does not count yet; the staleness budget and the task deadline make it terminal
in time. So a difficult bin that is slow shows as soon as its work is dropped as stale, and a bin that is slow and still
trained does not: its share of the gradient is the requested one.

The trained are a part of the decided, so with nothing dropped the drift is exactly 0. With drops that hit all bins
alike it is not, by chance: T trained of N decided are a sample without replacement, whose shares vary by
m(1 - m)(1/T - 1/N). The divergence is to second order sum((p - q)^2 / (8 m ln 2)), hence too large by
(k - 1)(1/T - 1/N) / (8 ln 2) on average for k bins, and a chi-squared of k - 1 degrees scatters by sqrt(2 / (k - 1))
of that. The mean and two deviations are subtracted: what is left is drift that chance hardly explains. With few samples
there is no verdict. The samples of a group share a prompt, and with it the bin, and are trained or dropped together:
they count as one.
"""

import math
from collections.abc import Mapping

import msgspec

# Trained groups below which a mix is not significant, in all and for each bin that occurs. With them, chance passes
# 0.01 bits in 1 of 400 windows while half of the work is dropped (2,000 draws, 3 and 10 bins); with half as many in 1
# of 30, and one such window lasts long enough to spend a budget.
SAMPLES_MIN = 60
SAMPLES_PER_BIN_MIN = 10
CHANCE_DEVIATIONS = 2.0
# Samples that a window keeps; between them the window's edge is off by one part in this many.
SAMPLES_MAX = 32

Histogram = Mapping[str, float]


class Mix(msgspec.Struct, frozen=True):
    """Monotonic counts by bin: what became terminal, and what of it was trained."""

    decided: dict[str, float]
    trained: dict[str, float]


class MixSample(msgspec.Struct, frozen=True):
    """The counts at one moment."""

    at_s: float
    mix: Mix


class MixWindow(msgspec.Struct, frozen=True):
    """The counts of the last ``SAMPLES_MAX`` samples, oldest first, at most one each part of the window."""

    samples: tuple[MixSample, ...] = ()

    def note(self, mix: Mix, *, at_s: float, window_s: float) -> "MixWindow":
        """The window after one more sample; a clock that went back restarts it."""
        if self.samples and at_s < self.samples[-1].at_s:
            return MixWindow((MixSample(at_s, mix),))
        samples = self.samples
        if len(samples) >= 2 and at_s - samples[-2].at_s < window_s / (SAMPLES_MAX - 2):
            samples = samples[:-1]  # the newest one moves on until it is far enough from the one before
        samples = (*samples, MixSample(at_s, mix))
        first = 0
        while len(samples) - first > 2 and samples[first + 1].at_s <= at_s - window_s:
            first += 1
        return MixWindow(samples[first:][-SAMPLES_MAX:])

    def increase(self) -> Mix:
        """What was decided and trained over the window; a counter that went back counts from zero."""
        if not self.samples:
            return Mix({}, {})
        before, after = self.samples[0].mix, self.samples[-1].mix
        return Mix(_increase(before.decided, after.decided), _increase(before.trained, after.trained))


def jensen_shannon(left: Histogram, right: Histogram) -> float:
    """Divergence of two histograms over the same bins, in bits, in [0, 1]; 0 where either is empty."""
    total_left, total_right = sum(left.values()), sum(right.values())
    if total_left <= 0 or total_right <= 0:
        return 0.0
    bits = 0.0
    for name in sorted({*left, *right}):
        p, q = left.get(name, 0.0) / total_left, right.get(name, 0.0) / total_right
        m = (p + q) / 2
        bits += sum(share * math.log2(share / m) for share in (p, q) if share > 0) / 2
    return min(1.0, max(0.0, bits))


def sampling_bias(*, num_bins: int, num_trained: float, num_decided: float) -> float:
    """Bits of divergence that drops by pure chance show on average; see the top of this file."""
    if num_bins < 2 or num_trained <= 0 or num_decided <= num_trained:
        return 0.0
    return (num_bins - 1) * (1.0 / num_trained - 1.0 / num_decided) / (8.0 * math.log(2.0))


def chance(*, num_bins: int, num_trained: float, num_decided: float) -> float:
    """Bits of divergence that drops by pure chance hardly exceed."""
    bias = sampling_bias(num_bins=num_bins, num_trained=num_trained, num_decided=num_decided)
    return bias * (1.0 + CHANCE_DEVIATIONS * math.sqrt(2.0 / max(1, num_bins - 1)))


def drift(mix: Mix, *, group_size: int = 1) -> float | None:
    """Bits between the decided and the trained, less what chance explains; None with too few samples."""
    decided = {name: number for name, number in mix.decided.items() if number > 0}
    trained = {name: number for name, number in mix.trained.items() if number > 0}
    num_trained, num_decided = sum(trained.values()) / group_size, sum(decided.values()) / group_size
    num_bins = len({*decided, *trained})
    if num_trained < max(SAMPLES_MIN, SAMPLES_PER_BIN_MIN * num_bins):
        return None
    explained = chance(num_bins=num_bins, num_trained=num_trained, num_decided=num_decided)
    return max(0.0, jensen_shannon(decided, trained) - explained)


def most_lost(mix: Mix) -> str:
    """Which bin lost the largest part of its share, as text; empty when none did."""
    total_decided, total_trained = sum(mix.decided.values()), sum(mix.trained.values())
    if total_decided <= 0 or total_trained <= 0:
        return ""
    losses = {
        name: number / total_decided - mix.trained.get(name, 0.0) / total_trained
        for name, number in mix.decided.items()
    }
    name = max(losses, key=lambda each: (losses[each], each))
    if losses[name] <= 0:
        return ""
    asked, got = mix.decided[name] / total_decided, mix.trained.get(name, 0.0) / total_trained
    return f"{name}: {asked:.0%} of what was decided, {got:.0%} of what was trained"


def _increase(before: Histogram, after: Histogram) -> dict[str, float]:
    return {
        name: number - before.get(name, 0.0) if number >= before.get(name, 0.0) else number
        for name, number in after.items()
    }
