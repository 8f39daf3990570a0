"""Advice on what to buy or set: the fixes of a window with gain and price, the best one, and why not the others.

The diagnosis names the bottleneck; fixes are ranked by the cost of a million trained samples after them. A free fix
with a gain (a bound of the run file, a disk to check) therefore comes first, and releasing idle actors competes with
buying a faster learner for them; of two with the same cost, the one with more throughput is better. Gains are the
diagnosis' first-order estimates; a further learner replica brings what the planner's model of data parallelism
predicts.
"""

from typing import assert_never

import msgspec

from tidegate.core.balance import (
    FULL_DEPTH_BATCHES,
    IDLE_RATIO_MAX,
    Bottleneck,
    Diagnosis,
    Lever,
    Signals,
    action,
    actor_gain,
    actors_idle_ratio,
    actors_needed,
    diagnose,
    inference_gain,
    overlap_gain,
    publishing_ratio,
)
from tidegate.core.planner.scaling import replicas_max, speedup
from tidegate.core.prices import EXAMPLE_PRICES, Prices, dollars, usd_per_million
from tidegate.core.workloads import ONE_MACHINE, Workloads

LEVERS: tuple[Lever, ...] = (
    "actor",
    "fewer_actors",
    "environment",
    "inference",
    "learner",
    "weights",
    "store",
    "max_lag",
    "max_running",
)
# Windows of ten seconds differ by more than this from each other.
WORTH_MIN = 0.02
# First-order estimates cannot distinguish costs this close: then the fix with the larger gain is better.
SAME_COST = 0.05


class Fix(msgspec.Struct, frozen=True):
    """One fix. ``gain``: share of throughput it brings; ``samples_per_s`` and ``usd_per_million``: after it."""

    lever: Lever
    action: str
    gain: float
    added_usd_per_h: float
    samples_per_s: float
    usd_per_million: float


class Advice(msgspec.Struct, frozen=True):
    """The most cost-effective fix, the more expensive ones that help too, and why the others would bring nothing.

    ``usd_per_h``, ``usd_per_million``: at present; infinite (null in JSON) per million while no sample is
    trained. ``best`` None: nothing to buy or set.
    """

    bottleneck: Bottleneck
    samples_per_s: float
    usd_per_h: float
    usd_per_million: float
    best: Fix | None
    others: tuple[Fix, ...]
    why_not: dict[str, str]
    sentence: str


def advise(
    signals: Signals, *, prices: Prices = EXAMPLE_PRICES, workloads: Workloads = ONE_MACHINE
) -> Advice:
    """Price the fixes of one window; ``workloads``: what their commands name."""
    diagnosis = diagnose(signals, workloads)
    rate = signals.learner_samples_per_s
    usd_per_h = prices.usd_per_h(
        num_actors=signals.num_actors,
        num_environments=signals.num_environments,
        num_learners=signals.num_learners,
    )
    now = usd_per_million(usd_per_h, per_s=rate)
    if diagnosis.lever is None or rate <= 0.0:
        # A service is missing, or there is nothing to gain: no replica to buy would help.
        why_not = _why_not(signals, diagnosis, ()) if diagnosis.bottleneck == "balanced" else {}
        return Advice(diagnosis.bottleneck, rate, usd_per_h, now, None, (), why_not, _to_do(diagnosis))
    fixes = [
        _priced(lever, gain, signals, prices, action(lever, signals, workloads), usd_per_h=usd_per_h)
        for lever, gain in _gains(signals, diagnosis).items()
    ]
    worthy = sorted(
        (fix for fix in fixes if _is_worth_it(fix, now)), key=lambda fix: (fix.usd_per_million, -fix.gain)
    )
    best = _best(worthy)
    return Advice(
        bottleneck=diagnosis.bottleneck,
        samples_per_s=rate,
        usd_per_h=usd_per_h,
        usd_per_million=now,
        best=best,
        others=tuple(fix for fix in worthy if fix is not best),
        why_not=_why_not(signals, diagnosis, tuple(worthy)),
        sentence=_sentence(best, now) if best else _to_do(diagnosis),
    )


def _gains(signals: Signals, diagnosis: Diagnosis) -> dict[Lever, float]:
    """Share of throughput that each lever brings, for levers that affect the bottleneck."""
    learner_room = 1.0 / max(0.01, 1.0 - signals.learner_idle_ratio)
    match diagnosis.bottleneck:
        case "idle":
            return {}
        case "learner":
            # The store is full and actors never wait: they are at least as fast, within the noise of the window.
            actors_room = 1.0 / max(0.01, 1.0 - max(actors_idle_ratio(signals), IDLE_RATIO_MAX))
            return {"learner": min(_learner_speedup(signals), actors_room) - 1.0, "fewer_actors": 0.0}
        case "environment":
            workers = max(1, signals.num_environments)
            return {"environment": min((workers + 1) / workers, learner_room) - 1.0}
        case "inference":
            return {"inference": inference_gain(signals)}
        case "store":
            return {"store": learner_room - 1.0}
        case "weights":
            if diagnosis.lever == "weights":
                return {"weights": 1.0 / max(0.01, 1.0 - publishing_ratio(signals)) - 1.0}
            waiting = 1.0 / max(0.01, 1.0 - signals.actor_wait_policy_ratio)
            return {"max_lag": min(waiting, learner_room) - 1.0}
        case "actor" | "balanced":
            gains: dict[Lever, float] = {"actor": actor_gain(signals)}
            if actors_idle_ratio(signals) > IDLE_RATIO_MAX:
                # Each side waits for the other in turn: a shorter or overlapped part of either shortens the cycle.
                bound: Lever = "max_running" if signals.running >= signals.max_running else "max_lag"
                gains[bound] = overlap_gain(signals)
                learner_works = 1.0 - signals.learner_idle_ratio
                gains["learner"] = 1.0 / (1.0 - learner_works * (1.0 - 1.0 / _learner_speedup(signals))) - 1.0
            return gains


def _learner_speedup(signals: Signals) -> float:
    """Gain of one more learner replica; 0 where the model covers no more."""
    replicas = max(1, signals.num_learners)
    return speedup(replicas + 1) / speedup(replicas) if replicas < replicas_max(()) else 1.0


def _priced(
    lever: Lever, gain: float, signals: Signals, prices: Prices, to_do: str, *, usd_per_h: float
) -> Fix:
    added = _added_usd_per_h(lever, signals, prices)
    rate = signals.learner_samples_per_s * (1.0 + gain)
    return Fix(lever, to_do, gain, added, rate, usd_per_million(usd_per_h + added, per_s=rate))


def _added_usd_per_h(lever: Lever, signals: Signals, prices: Prices) -> float:
    match lever:
        case "actor":
            return prices.actor_usd_per_h
        case "fewer_actors":
            return -prices.actor_usd_per_h * (signals.num_actors - actors_needed(signals))
        case "environment":
            return prices.environment_usd_per_h
        case "learner":
            return prices.learner_usd_per_h
        case "inference" | "weights" | "store" | "max_lag" | "max_running":
            return 0.0


def _is_worth_it(fix: Fix, now: float) -> bool:
    """Whether it brings throughput, or the same throughput for less."""
    return fix.gain >= WORTH_MIN or fix.usd_per_million < now * (1.0 - WORTH_MIN)


def _best(cheapest_first: list[Fix]) -> Fix | None:
    if not cheapest_first:
        return None
    limit = cheapest_first[0].usd_per_million * (1.0 + SAME_COST)
    return max((fix for fix in cheapest_first if fix.usd_per_million <= limit), key=lambda fix: fix.gain)


def _to_do(diagnosis: Diagnosis) -> str:
    fix = diagnosis.fix or "nothing to fix"
    return f"{fix[:1].upper()}{fix[1:]}."


def _sentence(best: Fix, now: float) -> str:
    change = f" ({best.usd_per_million / now - 1.0:+.0%})" if now > 0.0 else ""
    action_named = f"{best.action[:1].upper()}{best.action[1:]}"
    cost = f"{dollars(best.usd_per_million)} per million samples instead of {dollars(now)}{change}"
    return f"{action_named}: {gain_of(best)} at {cost}."


def gain_of(fix: Fix) -> str:
    """What a fix brings, as text."""
    return f"about {fix.gain:+.0%} throughput" if fix.gain >= WORTH_MIN else "the same throughput"


def _why_not(signals: Signals, diagnosis: Diagnosis, worthy: tuple[Fix, ...]) -> dict[str, str]:
    named = {fix.lever for fix in worthy}
    if signals.num_inferences == 0:
        named.add("inference")
    return {lever: _reason(lever, signals, diagnosis.bottleneck) for lever in LEVERS if lever not in named}


def _reason(lever: Lever, signals: Signals, bottleneck: Bottleneck) -> str:
    """Why a lever would buy nothing, with the number that shows it."""
    actors_idle, learner_idle = actors_idle_ratio(signals), signals.learner_idle_ratio
    match lever:
        case "actor":
            if learner_idle <= IDLE_RATIO_MAX:
                return f"the learner waits {learner_idle:.0%} of its time, so it has none for another actor's rollouts"
            return f"what another actor makes would wait for the {_obstacle(bottleneck)} as well"
        case "fewer_actors":
            if actors_idle <= IDLE_RATIO_MAX:
                return f"actors idle {actors_idle:.0%} of their time: none is one too many"
            if bottleneck == "learner":
                return f"what they do takes {actors_needed(signals)} of {signals.num_actors} as it is"
            return "they idle because they are held up, not because they are too many"
        case "environment":
            return (
                f"{signals.unscored:.0f} of {signals.in_flight:.0f} trajectories in flight wait for a reward, and"
                f" workers are busy {signals.environment_busy_ratio:.0%}"
            )
        case "inference":
            return (
                f"it is busy {signals.inference_busy_ratio:.0%}, and actors wait"
                f" {signals.actor_wait_inference_ratio:.0%} of their time for actions"
            )
        case "learner":
            if learner_idle <= IDLE_RATIO_MAX:
                return f"actors idle {actors_idle:.0%} of their time, so they could not feed a faster one"
            return f"it waits {learner_idle:.0%} of its time already; a faster one would wait longer"
        case "weights":
            if bottleneck == "weights":
                return "publishing does not hold the learner up; what takes time is the pull by the actors"
            return (
                f"actors wait {signals.actor_wait_policy_ratio:.0%} of their time for a policy, and publishing costs"
                f" the learner {max(0.0, publishing_ratio(signals)):.0%}"
            )
        case "store":
            depth = f"{signals.depth_batches():.1f} batches are in it"
            if signals.depth_batches() >= FULL_DEPTH_BATCHES and learner_idle <= IDLE_RATIO_MAX:
                return f"{depth}, and the learner is not kept waiting for them"
            return f"{depth}, {signals.unstored:.0f} trajectories wait before it"
        case "max_lag":
            if learner_idle <= IDLE_RATIO_MAX:
                return "the learner hardly waits: a wider budget would only make its data older"
            if actors_idle <= IDLE_RATIO_MAX:
                return f"actors idle {actors_idle:.0%} of their time: the budget holds none of them back"
            return f"{_held_by(signals, bottleneck)}, not the budget"
        case "max_running":
            return f"{signals.running:.0f} of {signals.max_running} run" + (
                ": the bound is not reached"
                if signals.running < signals.max_running
                else ", and wait further on"
            )
        case _:
            assert_never(lever)


def _obstacle(bottleneck: Bottleneck) -> str:
    return {"weights": "policy", "balanced": "learner", "idle": "admission"}.get(bottleneck, bottleneck)


def _held_by(signals: Signals, bottleneck: Bottleneck) -> str:
    if bottleneck == "balanced" and signals.running >= signals.max_running:
        return f"max_running {signals.max_running} holds the actors"
    return f"the {_obstacle(bottleneck)} holds the actors"
