"""Service level objectives: the targets, how much of the error budget is left, and how fast it burns.

An objective defines which share (``target``) of observations in a sliding window must be good. The rest, ``1 -
target``, is the error budget. Budget and burn rate are those of Google's SRE workbook (ch. 5, "Alerting on SLOs"), its
multiwindow alert scaled to the objective's own window: a twelfth of the window burning at ``BURN_FACTOR`` (a quarter of
the whole budget), and the last moments burning as well, so that the alert ends soon after the trouble. The workbook's
14.4 over an hour of thirty days is for services; a training run is judged over minutes, so there is one pair.

Time comes as an argument and is not trusted: only its differences count, a step back counts as no time, and a step
forward can at most empty the window. What is not a number is no observation, and is counted as missing.

Budgets and burn rates refer to the *whole* window also while it is not full yet: the observations since the
oldest one are scaled up to it, and the part before counts as good. A run's first bad second is not a spent budget.
"""

import math
from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

Direction: TypeAlias = Literal["at_most", "at_least"]
Condition: TypeAlias = Literal["ok", "burning", "breached", "no_data"]
CONDITIONS: tuple[Condition, ...] = ("ok", "burning", "breached", "no_data")

# A window is this many buckets; the alert uses a twelfth of it, and the last bucket and the one before.
BUCKETS = 144
LONG_BUCKETS = 12
SHORT_BUCKETS = 2
# Three times the sustainable rate over a twelfth of the window is a quarter of the budget. It can fire as long as
# BURN_FACTOR * (1 - target) < 1, that is for targets above two thirds.
BURN_FACTOR = 3.0
# Once fired, the alert holds until the last moments burn less than the budget sustains.
CALM_BURN = 1.0
# Where little happens one bad observation is a large share; fewer than these are no trend (workbook, "low traffic").
ALERT_BAD_MIN = 3.0
# Rates are cut off here, so that an objective without a budget (target 1) still has numbers and no infinities.
BURN_MAX = 1000.0
# 1 - target is not exact in binary; a budget spent to the last bit is not overspent.
ROUNDING = 1e-9


class Slo(msgspec.Struct, frozen=True):
    """One objective: at least ``target`` of the observations within ``window_s`` are on the good side of ``bound``.

    ``unit`` is for people: ``versions``, ``s``, ``share``. ``target`` in (2/3, 1]; at 1 there is no budget, and one
    bad observation is a breach until it leaves the window.
    """

    name: str
    bound: float
    target: float
    window_s: float
    direction: Direction = "at_most"
    unit: str = ""

    @property
    def bucket_s(self) -> float:
        """Width of a bucket in seconds."""
        return self.window_s / BUCKETS

    def holds(self, value: float) -> bool:
        """Whether a value is on the good side of the bound."""
        return value <= self.bound if self.direction == "at_most" else value >= self.bound


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """Observations of one stretch of time. ``missing``: samples that found nothing to observe."""

    index: int
    good: float = 0.0
    bad: float = 0.0
    missing: float = 0.0


class Breach(msgspec.Struct, frozen=True):
    """When an objective last started to burn, at which value, and the bottleneck then. ``at_s``: since the epoch."""

    at_s: float
    value: float | None
    cause: str


class SloState(msgspec.Struct, frozen=True):
    """State of one objective: at most ``BUCKETS`` buckets, oldest first.

    ``time_s`` is the objective's monotonic clock; ``seen_at_s`` the caller's at the last observation.
    ``condition`` is the one that ``update_condition`` recorded last.
    """

    buckets: tuple[Bucket, ...] = ()
    time_s: float = 0.0
    seen_at_s: float | None = None
    value: float | None = None
    condition: Condition = "no_data"
    last_breach: Breach | None = None


class Verdict(msgspec.Struct, frozen=True):
    """An objective at one moment, as it is shown.

    ``value`` was observed last; ``good``, ``bad`` and ``missing`` are over the window. ``budget_left``: 1 untouched,
    0 spent, below that overspent. ``burn_*``: 1 spends the budget exactly within the window.
    """

    slo: Slo
    condition: Condition
    value: float | None
    good: float
    bad: float
    missing: float
    budget_left: float
    burn_long: float
    burn_short: float
    last_breach: Breach | None = None


class Change(msgspec.Struct, frozen=True):
    """An objective went from one condition to another."""

    slo: str
    before: Condition
    after: Condition
    value: float | None
    bound: float
    budget_left: float
    cause: str

    @property
    def kind(self) -> Literal["breach", "recovery", "no_data", "data"]:
        """The change as an operator's word."""
        if self.after == "no_data":
            return "no_data"
        if self.after in ("burning", "breached"):
            return "breach"
        return "data" if self.before == "no_data" else "recovery"


def observe(slo: Slo, state: SloState, value: float | None, *, at_s: float) -> SloState:
    """The state after one sample; None or a value that is not a number is a missing sample."""
    if value is None or math.isnan(value):
        return _add(slo, state, at_s=at_s, missing=1.0)
    holds = slo.holds(value)
    return _add(slo, state, at_s=at_s, good=float(holds), bad=float(not holds), value=value)


def count(
    slo: Slo, state: SloState, *, good: float, bad: float, value: float | None, at_s: float
) -> SloState:
    """The state after several observations that the caller judged; none of either is a missing sample."""
    if not (good > 0 or bad > 0):
        return _add(slo, state, at_s=at_s, missing=1.0)
    return _add(slo, state, at_s=at_s, good=max(0.0, good), bad=max(0.0, bad), value=value)


def verdict(slo: Slo, state: SloState, *, now_s: float) -> Verdict:
    """The verdict now."""
    state = _advance(slo, state, at_s=now_s)
    good, bad, missing = _sums(slo, state, buckets=BUCKETS)
    budget_left = max(-BURN_MAX, 1.0 - _burn(slo, state, buckets=BUCKETS))
    burn_long = _burn(slo, state, buckets=LONG_BUCKETS)
    burn_short = _burn(slo, state, buckets=SHORT_BUCKETS)
    _, bad_long, _ = _sums(slo, state, buckets=LONG_BUCKETS)
    fires = min(burn_long, burn_short) >= BURN_FACTOR and bad_long >= ALERT_BAD_MIN
    holds_on = state.condition == "burning" and burn_short >= CALM_BURN
    condition: Condition = "ok"
    if not (good or bad):
        condition = "no_data"
    elif budget_left < -ROUNDING:
        condition = "breached"
    elif fires or holds_on:
        condition = "burning"
    return Verdict(
        slo=slo,
        condition=condition,
        value=state.value,
        good=good,
        bad=bad,
        missing=missing,
        budget_left=budget_left,
        burn_long=burn_long,
        burn_short=burn_short,
        last_breach=state.last_breach,
    )


def coverage(slo: Slo, state: SloState, *, now_s: float) -> float:
    """Share of the window since the oldest observation in it, 0 before there is one; what budgets are scaled by."""
    state = _advance(slo, state, at_s=now_s)
    return _seen(slo, state, buckets=BUCKETS) / BUCKETS


def update_condition(
    slo: Slo, state: SloState, *, now_s: float, cause: str, wall_s: float
) -> tuple[SloState, Change | None]:
    """Record the condition; returns the change if it differs from the one before.

    ``cause``: the bottleneck at this moment. ``wall_s``: seconds since the epoch, for the record.
    """
    found = verdict(slo, state, now_s=now_s)
    if found.condition == state.condition:
        return state, None
    change = Change(
        slo=slo.name,
        before=state.condition,
        after=found.condition,
        value=found.value,
        bound=slo.bound,
        budget_left=found.budget_left,
        cause=cause,
    )
    breach = state.last_breach
    # From burning to breached is the same incident: its first cause stays on record.
    if change.kind == "breach" and state.condition not in ("burning", "breached"):
        breach = Breach(at_s=wall_s, value=found.value, cause=cause)
    return msgspec.structs.replace(state, condition=found.condition, last_breach=breach), change


def headline(verdicts: Iterable[Verdict]) -> str:
    """How many objectives are in which condition, in one line: ``9 ok, 1 burning (lag_p95)``."""
    found = list(verdicts)
    parts: list[str] = []
    for condition in CONDITIONS:
        names = [each.slo.name for each in found if each.condition == condition]
        if names:
            shown = f" ({', '.join(names)})" if condition in ("burning", "breached") else ""
            parts.append(f"{len(names)} {condition.replace('_', ' ')}{shown}")
    return ", ".join(parts) or "none declared"


def _advance(slo: Slo, state: SloState, *, at_s: float) -> SloState:
    """The state with its clock advanced, without the buckets that left the window."""
    if not math.isfinite(at_s):
        return state
    before_s = at_s if state.seen_at_s is None else state.seen_at_s
    elapsed_s = min(max(0.0, at_s - before_s), slo.window_s + slo.bucket_s)
    time_s = state.time_s + elapsed_s
    newest = _index(slo, time_s)
    buckets = state.buckets
    if buckets and buckets[0].index <= newest - BUCKETS:
        buckets = tuple(bucket for bucket in buckets if bucket.index > newest - BUCKETS)
    return msgspec.structs.replace(state, buckets=buckets, time_s=time_s, seen_at_s=at_s)


def _add(
    slo: Slo,
    state: SloState,
    *,
    at_s: float,
    good: float = 0.0,
    bad: float = 0.0,
    missing: float = 0.0,
    value: float | None = None,
) -> SloState:
    state = _advance(slo, state, at_s=at_s)
    newest = _index(slo, state.time_s)
    buckets = state.buckets
    last = Bucket(newest)
    if buckets and buckets[-1].index == newest:
        *older, last = buckets
        buckets = tuple(older)
    added = Bucket(newest, last.good + good, last.bad + bad, last.missing + missing)
    return msgspec.structs.replace(
        state,
        buckets=(*buckets, added),
        value=state.value if value is None else value,
    )


def _index(slo: Slo, time_s: float) -> int:
    return int(time_s // slo.bucket_s)


def _sums(slo: Slo, state: SloState, *, buckets: int) -> tuple[float, float, float]:
    """Good, bad and missing of the newest ``buckets`` buckets."""
    oldest = _index(slo, state.time_s) - buckets
    recent = [bucket for bucket in state.buckets if bucket.index > oldest]
    return (
        sum(bucket.good for bucket in recent),
        sum(bucket.bad for bucket in recent),
        sum(bucket.missing for bucket in recent),
    )


def _seen(slo: Slo, state: SloState, *, buckets: int) -> int:
    """How many of the newest ``buckets`` buckets there have been since the oldest observation."""
    first = next((bucket.index for bucket in state.buckets if bucket.good or bucket.bad), None)
    return 0 if first is None else min(buckets, _index(slo, state.time_s) - first + 1)


def _burn(slo: Slo, state: SloState, *, buckets: int) -> float:
    """How many times faster than sustainable the budget goes, over the newest ``buckets`` buckets."""
    good, bad, _ = _sums(slo, state, buckets=buckets)
    if bad <= 0:
        return 0.0
    allowed = (1.0 - slo.target) * (good + bad) * buckets / _seen(slo, state, buckets=buckets)
    return BURN_MAX if bad >= BURN_MAX * allowed else bad / allowed
