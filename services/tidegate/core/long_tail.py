"""Decisions about long rollouts: whether one can still be trained on, length penalties, early stops of groups.

Lag counts from the oldest version inside a trajectory. A rollout that continues under newer weights therefore gains
nothing against the budget: its first token keeps its version, and the head moves on. Every engine does continue under
newer weights (the spans record it), which makes its later tokens fresher; but the only remedies for one that will
overshoot are to end it, to make the head wait (``max_lag`` 0, a hard sync), or a larger budget. See ``decide_rollout``.
"""

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from tidegate.core.ids import PolicyVersion
from tidegate.core.lengths import SurvivalCurve
from tidegate.core.records import Trajectory
from tidegate.core.staleness import StalenessLimits

# Publishes that a rate is measured over: few enough to follow a learner that slows down within a budget's time.
RATE_WINDOW = 16
# The component of a reward that a length near its cap costs.
OVERLONG_COMPONENT = "overlong"


class PublishRate(msgspec.Struct, frozen=True):
    """Versions published per second, from when the last ones were seen: (step, seconds), oldest first."""

    seen: tuple[tuple[int, float], ...] = ()
    lineage: str = ""

    def publish(self, version: PolicyVersion, *, now_s: float) -> "PublishRate":
        """The knowledge after ``version`` was seen; another lineage restarts it."""
        if version.lineage != self.lineage:
            return PublishRate(((version.step, now_s),), version.lineage)
        if self.seen and version.step <= self.seen[-1][0]:
            return self
        return PublishRate((*self.seen[1 - RATE_WINDOW :], (version.step, now_s)), self.lineage)

    def per_s(self, *, now_s: float) -> float:
        """Versions per second over the window up to now, so that a learner that stopped is seen to; 0 when unknown."""
        if len(self.seen) < 2:
            return 0.0
        first_step, first_s = self.seen[0]
        return (self.seen[-1][0] - first_step) / max(now_s - first_s, 1e-9)


class RolloutUnderWay(msgspec.Struct, frozen=True):
    """A rollout that has not ended: seconds since it was started, and the lag of its oldest version by now."""

    elapsed_s: float
    lag: int


class Continue(msgspec.Struct, frozen=True):
    """Continue it. ``finish_chance``: of ending inside the budget, where it is known."""

    finish_chance: float | None = None


class Cut(msgspec.Struct, frozen=True):
    """End it now: it would be dropped for ``reason`` at its end."""

    reason: Literal["stale", "expired"]
    detail: str


def decide_rollout(
    rollout: RolloutUnderWay,
    curve: SurvivalCurve,
    *,
    limits: StalenessLimits,
    versions_per_s: float,
    finish_chance_min: float,
) -> Continue | Cut:
    """Whether a rollout can still be trained on.

    One beyond the budget already is cut for certain. Otherwise it has the seconds until the head will have passed
    its oldest version by more than ``max_lag`` (and until ``max_age_s``), and is cut when its chance of ending within
    them, given how long it already took (``curve``, in seconds), is below ``finish_chance_min``. Where nothing is
    known it continues.

    At ``max_lag`` 0 the head waits for every rollout in flight (the capacity law admits one batch), so none of them
    can overshoot it, however slow; only age ends one. A rate would suggest otherwise: it is measured over rounds that
    had no straggler.
    """
    if rollout.lag > limits.max_lag:
        return Cut("stale", f"{rollout.lag} versions behind while running (max_lag {limits.max_lag})")
    if rollout.elapsed_s > limits.max_age_s:
        return Cut("expired", f"{rollout.elapsed_s:.1f} s running (max_age_s {limits.max_age_s:g})")
    age_left_s = limits.max_age_s - rollout.elapsed_s
    versions_left = limits.max_lag - rollout.lag
    head_left_s = math.inf
    if limits.max_lag > 0 and versions_per_s > 0.0:
        # The next publish may be a whole period away: the later of the two errors is to wait.
        head_left_s = (versions_left + 1) / versions_per_s
    left_s = min(age_left_s, head_left_s)
    chance = curve.finish_chance(rollout.elapsed_s, within=left_s)
    if chance is None or chance >= finish_chance_min:
        return Continue(chance)
    chances = f"{chance:.1%} of rollouts that took {rollout.elapsed_s:.3g} s end within {left_s:.3g} s more"
    if head_left_s <= age_left_s:
        return Cut(
            "stale",
            f"{chances}; at {versions_per_s:.3g} versions/s only {versions_left} are left of its budget",
        )
    return Cut("expired", f"{chances}, when it reaches max_age_s {limits.max_age_s:g}")


def capped_length(curve: SurvivalCurve, *, quantile: float, length_max: int, cache_share: float = 0.0) -> int:
    """The cap of a bin's rollouts: the length that ``quantile`` of them stay within, never above ``length_max``.

    With a penalty near the cap, its zone (``cache_share`` of the cap) lies beyond that length and not below it, as DAPO
    allots it on top of the expected maximum: what most rollouts need must cost nothing.

    Unknown until enough rollouts ended, also when too many reached an earlier cap to see that far: then it is
    ``length_max``, which is also how a policy that learns to write more is noticed.
    """
    length = curve.remaining_quantile(0.0, share=quantile)
    if length is None:
        return length_max
    return max(1, min(length_max, math.ceil(length / (1.0 - cache_share))))


def overlong_penalty(length: int, *, length_max: int, cache_share: float) -> float:
    """The soft penalty on lengths near the cap, in [-1, 0] (Yu 2025, DAPO, eq. 13).

    0 up to (1 - ``cache_share``) x ``length_max``, from there in a straight line to -1 at ``length_max`` and beyond.
    """
    cache = cache_share * length_max
    if cache <= 0.0:
        return 0.0 if length <= length_max else -1.0
    return 0.0 - min(1.0, max(0.0, (length - (length_max - cache)) / cache))


class OverlongRule(msgspec.Struct, frozen=True):
    """What completions near their cap cost: up to ``weight`` over the last ``cache_share`` of it.

    Only where the cap was predicted, below ``length_max``: at the run file's own bound it is unknown how long answers
    have to be, and a task whose right answers just fit would be taught to stop short of them.
    """

    cache_share: float
    weight: float
    length_max: int

    def applied(self, record: Trajectory) -> Trajectory:
        """A rewarded record with what its length costs, as the component ``overlong``.

        The cap is the one that it was sampled under, which its sampler records.
        """
        assert record.reward is not None, "a penalty is added to a reward"
        cap = record.sampler.max_new_tokens
        penalty = 0.0
        if cap < self.length_max:
            penalty = self.weight * overlong_penalty(
                record.length_tokens, length_max=cap, cache_share=self.cache_share
            )
        return msgspec.structs.replace(
            record,
            reward=record.reward + penalty,
            reward_components={**record.reward_components, OVERLONG_COMPONENT: penalty},
        )


def may_stop_early(rewards: Sequence[float], *, samples_min: int) -> bool:
    """Whether a group may stop early: ``samples_min`` or more samples with one and the same reward have no signal.

    A group's advantages are differences of rewards (Yu 2025, DAPO, sec. 3.2, dynamic sampling). The rest of the group
    could still have differed, so the rule drops some useful groups of hard and of easy prompts: the smaller
    ``samples_min``, the more.
    """
    return len(rewards) >= max(1, samples_min) and min(rewards) == max(rewards)
