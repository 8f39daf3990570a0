"""How many actors a run needs, from how busy the learner and the actors are.

The number of waiting tasks is no input: that queue is kept full on purpose, and a scaler that follows it ends at its
maximum. With ``N`` actors that are busy a share ``u`` of their time, and a learner that is busy a share ``w`` of its
time,

    needed = N u / w

actors keep both busy: N u is the work that goes in, and a learner that never waits takes 1 / w times as much. The
number is absolute, independent of the N it is measured at, so the steps towards it do not oscillate. The scaler scales
out only where actors are the bottleneck and the data is not near the edge of its budget; it scales in only where
nothing or the learner is the bottleneck, and then with a margin.

A manual scale is kept for a while, and after that the next step starts from it. A number set by hand outside of the
bounds stays until it is changed by hand.
"""

import math
from typing import Annotated, Literal, TypeAlias

import msgspec

from tidegate.core.balance import Bottleneck, Signals, actors_idle_ratio

Mode: TypeAlias = Literal["observe", "advise", "external", "controller"]

Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)]
# A learner that hardly ever works shows only that the need is large; the steps bound how fast it is met.
LEARNER_BUSY_MIN = 0.02
# Samples are kept as the means of this many parts of the longer window: a mean, because the largest of three hundred
# noisy samples is never the number that is needed.
SLOTS = 20
# Of the requested pods, this share must report before more are requested: pods that do not start add nothing.
JOINED_SHARE = 0.9


class ScalingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The recommended number of actors, and what applies it.

    ``mode``: ``observe`` recommends nothing and records each scaler; ``advise`` recommends (``tidegate explain``,
    statistics, a metric); ``external`` also answers KEDA's external scaler on admission's port; ``controller`` patches
    the scale of the actors' Deployment. The last needs Kubernetes access, the others work without.
    ``min_replicas``, ``max_replicas`` (actors): bounds of every recommendation, except 0 while paused.
    ``step_s`` (seconds), ``step_replicas`` (actors): at most one step in this time, of at most this many. Below the
    time an actor takes to start, it steps again before the actors of the last step have started.
    ``stabilise_out_s``, ``stabilise_in_s`` (seconds): a demand must last this long; the smallest demand of the first
    window counts for scaling out, the largest of the second for scaling in. The second should be the longer one: an
    actor too few costs the learner, one too many only itself.
    ``settle_s`` (seconds): time after a change of the number of actors whose samples are ignored; above
    ``admission.window_s``, or the ratios still describe the number before.
    ``actor_idle_share``: the share of idle time that scaling in leaves to actors, so that noise does not scale them
    out again.
    ``lag_share_max``: above this share of the staleness budget (mean lag) nothing is scaled out: more data at once
    would only be older data. Without effect where the budget is 0.
    ``hold_s`` (seconds): how long a scale set by a person or another controller is kept.
    ``zero_when_paused``: scale to 0 while the run is paused, and back after it.
    ``deletion_cost``: rank pods by the work they hold (``controller.kubernetes.io/pod-deletion-cost``), so that
    scaling in takes the least invested one; switch it off if another controller owns that annotation.

    Raises:
        ValueError: the bounds or the windows are the wrong way around.
    """

    mode: Mode = "observe"
    min_replicas: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 1
    max_replicas: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 16
    step_s: Annotated[float, msgspec.Meta(ge=1.0, le=3600.0)] = 30.0
    step_replicas: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 4
    stabilise_out_s: Seconds = 30.0
    stabilise_in_s: Seconds = 300.0
    settle_s: Seconds = 15.0
    actor_idle_share: Annotated[float, msgspec.Meta(ge=0.0, le=0.5)] = 0.10
    lag_share_max: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.9
    hold_s: Seconds = 900.0
    zero_when_paused: bool = False
    deletion_cost: bool = True

    def __post_init__(self) -> None:
        """Refuse bounds that no number of actors satisfies, and windows that would oscillate."""
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas {self.min_replicas} is above max_replicas {self.max_replicas}: swap them"
            )
        if self.stabilise_out_s > self.stabilise_in_s:
            raise ValueError("stabilise_in_s must be at least stabilise_out_s: scaling in is the slower step")

    def clamp(self, replicas: int) -> int:
        """The nearest number of actors that may be recommended."""
        return max(self.min_replicas, min(replicas, self.max_replicas))


class ScalingView(msgspec.Struct, frozen=True):
    """The moment a recommendation is made from.

    ``replicas``: the requested number of pods; None where unknown: then the actors that report are counted. ``paused``:
    an operator stopped the run (a hard sync's pause is too short to scale by). ``scaled_by``: the other party that
    scaled last, ``scaled_s_ago`` seconds ago; None without one. ``zero_is_ours``: the current 0 was our step.
    ``asked``: a declared number, which replaces the measured need.
    """

    signals: Signals
    bottleneck: Bottleneck
    replicas: int | None = None
    paused: bool = False
    scaled_by: str = ""
    scaled_s_ago: float | None = None
    zero_is_ours: bool = False
    asked: int | None = None

    def current(self) -> int:
        """The actors that the next step starts from."""
        return self.signals.num_actors if self.replicas is None else self.replicas


class Recommendation(msgspec.Struct, frozen=True):
    """``replicas`` to have now, the number ``needed`` by the windows (0 while unknown), and the reason."""

    replicas: int
    reason: str
    needed: int = 0


class NeedSample(msgspec.Struct, frozen=True):
    """The needs measured in one part of the window, which starts at ``from_s``."""

    from_s: float
    total: float
    count: int = 1

    def mean(self) -> float:
        """Actors needed, not rounded."""
        return self.total / self.count


class ScalingState(msgspec.Struct, frozen=True):
    """State from one tick to the next; a new process starts with an empty one and waits for whole windows again.

    ``at_s``: when it was advanced last. ``changed_at_s``: of the last step. ``since_s``: since when ``samples`` have no
    gap. ``num_actors``, ``joined_at_s``: how many reported, and since when. ``working``: the last number that was not
    0, to come back to after a pause. ``steps`` counts. Times on a monotonic clock.
    """

    recommendation: Recommendation | None = None
    at_s: float = 0.0
    changed_at_s: float | None = None
    samples: tuple[NeedSample, ...] = ()
    since_s: float | None = None
    num_actors: int = -1
    joined_at_s: float = 0.0
    working: int = 0
    steps: int = 0


def advance(state: ScalingState, view: ScalingView, config: ScalingConfig, *, now_s: float) -> ScalingState:
    """The state after one tick; its recommendation is what holds now."""
    replace = msgspec.structs.replace
    if now_s < state.at_s:
        # The clock was set back: earlier times are invalid.
        state = ScalingState(recommendation=state.recommendation, working=state.working, steps=state.steps)
    if view.signals.num_actors != state.num_actors:
        state = replace(state, num_actors=view.signals.num_actors, joined_at_s=now_s)
    state = _sampled(replace(state, at_s=now_s), view, config, now_s=now_s)
    made = _recommend(state, view, config, now_s=now_s)
    before = state.recommendation
    # A hold or an operator's number does not count as a step of this scaler.
    stepped = before is not None and made.replicas not in (before.replicas, view.current())
    return replace(
        state,
        recommendation=made,
        changed_at_s=now_s if stepped else state.changed_at_s,
        working=made.replicas or state.working,
        steps=state.steps + int(stepped),
    )


def needed_replicas(view: ScalingView, config: ScalingConfig) -> float | None:
    """Actors that the present rates require, inside the bounds; None while the rates are insufficient."""
    signals = view.signals
    if signals.paused or not signals.num_actors or not signals.num_learners or not signals.num_stores:
        return None
    if view.bottleneck == "idle" or signals.learner_samples_per_s <= 0.0:
        return None
    at_work = signals.num_actors * (1.0 - actors_idle_ratio(signals))
    needed = at_work / max(LEARNER_BUSY_MIN, 1.0 - signals.learner_idle_ratio)
    stay = signals.num_actors
    match view.bottleneck:
        case "actor" if needed > stay and _has_headroom(signals, config):
            return min(needed, config.max_replicas)
        case "learner" | "balanced" if needed < stay:
            return max(config.min_replicas, min(stay, needed / (1.0 - config.actor_idle_share)))
        case _:
            return stay


def _recommend(
    state: ScalingState, view: ScalingView, config: ScalingConfig, *, now_s: float
) -> Recommendation:
    current, signals = view.current(), view.signals
    if view.scaled_s_ago is not None and view.scaled_s_ago < config.hold_s:
        left_s = config.hold_s - max(0.0, view.scaled_s_ago)
        return Recommendation(
            current, f"{view.scaled_by or 'another party'} scaled to {current}; held for {left_s:.0f} s more"
        )
    if view.paused:
        if config.zero_when_paused:
            return Recommendation(0, "the run is paused and zero_when_paused is on")
        if current:
            return Recommendation(current, "the run is paused")
    if view.asked is not None:
        asked = config.clamp(view.asked) if view.asked else 0
        return Recommendation(asked, f"{view.asked} replicas were asked for", asked)
    if current == 0 and view.replicas == 0 and not view.zero_is_ours:
        return Recommendation(0, "another party scaled to 0, which is a pause: scale to 1 or more to resume")
    if current == 0:
        start = config.clamp(state.working or max(1, config.min_replicas))
        return Recommendation(start, "no actor reports: as many as there were last, or the fewest")
    if config.clamp(current) != current:
        if view.scaled_s_ago is not None:
            party = view.scaled_by or "another party"
            return Recommendation(
                current, f"{party} scaled to {current}, outside of the bounds: not overruled"
            )
        target, why, needed = config.clamp(current), f"{current} is out of bounds", 0
    else:
        target, why, needed = _target(state, view, config, now_s=now_s)
    since_step_s = math.inf if state.changed_at_s is None else now_s - state.changed_at_s
    if since_step_s < config.step_s and state.recommendation is not None:
        standing = state.recommendation
        waits = f"the last step was {since_step_s:.0f} s ago, one in {config.step_s:.0f} s"
        reason = waits if standing.replicas == current else standing.reason
        return Recommendation(config.clamp(standing.replicas), reason, needed)  # bounds go before the rate
    if target > current and signals.num_actors < JOINED_SHARE * current:
        return Recommendation(
            current, f"waits for the actors asked for: {signals.num_actors} of {current} report", needed
        )
    step = max(-config.step_replicas, min(target - current, config.step_replicas))
    return Recommendation(current + step, why, needed)


def _target(
    state: ScalingState, view: ScalingView, config: ScalingConfig, *, now_s: float
) -> tuple[int, str, int]:
    """The target, the reason, and the observed need; a need counts once its window is whole."""
    current, signals = view.current(), view.signals
    measured_s = 0.0 if state.since_s is None else now_s - state.since_s
    if not state.samples or state.since_s is None:
        return current, "nothing is measured yet", 0
    rates = (
        f"actors idle {actors_idle_ratio(signals):.0%}, the learner {signals.learner_idle_ratio:.0%} of its time,"
        f" lag {signals.lag_mean:.1f} of {signals.max_lag}"
    )
    least = min(sample.mean() for sample in _within(state, config.stabilise_out_s, now_s=now_s))
    most = max(sample.mean() for sample in _within(state, config.stabilise_in_s, now_s=now_s))
    out, inwards = (config.clamp(max(1, _ceil(needed))) for needed in (least, most))
    if out > current:
        if measured_s >= config.stabilise_out_s:
            return out, f"actor-bound: {rates}", out
        return current, f"actor-bound for {measured_s:.0f} of {config.stabilise_out_s:.0f} s: {rates}", out
    if inwards < current:
        if measured_s >= config.stabilise_in_s:
            return inwards, f"more than the learner takes: {rates}", inwards
        lasted = f"{measured_s:.0f} of {config.stabilise_in_s:.0f} s"
        return current, f"more than the learner takes, for {lasted}: {rates}", inwards
    if view.bottleneck == "actor" and not _has_headroom(signals, config):
        return current, f"actor-bound, but lag is near its budget: {rates}", current
    return current, f"{view.bottleneck}-bound: {rates}" if view.bottleneck != "balanced" else rates, current


def _sampled(state: ScalingState, view: ScalingView, config: ScalingConfig, *, now_s: float) -> ScalingState:
    """Add one sample; a missing measurement is a gap, and a gap restarts the windows.

    A hard sync is no gap: it is over in seconds, and comes back every few versions.
    """
    replace = msgspec.structs.replace
    held_by_platform = view.signals.paused and not view.paused
    if now_s - state.joined_at_s < config.settle_s or held_by_platform:
        return state
    needed = needed_replicas(view, config)
    if needed is None:
        return replace(state, samples=(), since_s=None)
    slot_s = max(1.0, config.stabilise_in_s / SLOTS)
    newest = state.samples[-1] if state.samples else None
    if newest is not None and now_s - newest.from_s < slot_s:
        merged = NeedSample(newest.from_s, newest.total + needed, newest.count + 1)
        return replace(state, samples=(*state.samples[:-1], merged))
    samples = (*state.samples, NeedSample(now_s, needed))
    since_s = now_s if state.since_s is None else state.since_s
    return replace(state, samples=samples[-SLOTS - 1 :], since_s=since_s)


def _within(state: ScalingState, window_s: float, *, now_s: float) -> list[NeedSample]:
    """The samples of the newest part of the window, its edge included; at least one if there are any."""
    slots = [index for index, sample in enumerate(state.samples) if sample.from_s <= now_s - window_s]
    return list(state.samples[slots[-1] if slots else 0 :])


def _has_headroom(signals: Signals, config: ScalingConfig) -> bool:
    return signals.max_lag == 0 or signals.lag_mean <= config.lag_share_max * signals.max_lag


def _ceil(number: float) -> int:
    """Round up, ignoring rounding errors just above a whole number."""
    return math.ceil(number - 1e-6)
