"""The rollout planner: one synchronous step against one asynchronous step, and which term to work on.

A step trains on ``group`` rollouts (K), made by ``num_slots`` places (N) that each make one rollout at a time.

Synchronous: wall = rollout tail + reward tail + train + weight sync, one after the other. With K <= N the rollout tail
is the mean of the slowest of K. With K > N slots are refilled as they become free until K − N rollouts were started,
and the last N end together: (K − N)·μ/N + slowest of N. That is exact for exponentials; for other tails an estimate,
because what is left of a running rollout is not distributed as a fresh one.

Asynchronous with repacking: a place that falls free starts the next rollout at once, so rollouts cost their mean and
not their tail, and overlap with training: wall = max(K·μ/N + weight sync, train). Actors pay for the swap of weights,
the learner does not wait for it; rewards are computed meanwhile. By Little's law the mean lag is
N/K + (train + mean reward + weight sync)/wall updates: the rollouts that end from one start to the next of a place,
and what happens while a rollout is scored, trained on and its version travels. Where an update takes no time at all
the first term is (N − 1)/K: a place then starts under the version that its own last rollout made.

Admission lets at most (max_lag + 1)·K samples be in flight. Of those (K − 1)/2 wait for their batch to be full in the
mean, and the others take their time, which bounds the rate: wall >= K·latency/((max_lag + 1)·K − (K − 1)/2), latency
= μ + mean reward + train + weight sync. With max_lag 0 asynchrony is the synchronous step. These
are bounds: they meet a simulation within 3 % where one of actors, learner and budget binds clearly, and are up to a
sixth above it where learner and budget bind together at a batch of one sample, because chance then leaves both idle.

Freshness: data older than the wall (the lag past which corrections stop helping, 4 to 8 in the systems that published
theirs) teaches less. A step is taken to be worth 1/(1 + p·max(0, lag − wall)) of a fresh one, so the effective wall is
longer by that factor. p = 0.03 a version past a wall of 4 is an example of the right size (a corrected objective that
ends a tenth below the synchronous score at lag 16 has lost a few percent of a step a version); replace both by what
your own effective sample size shows.
"""

import math
from typing import Literal, TypeAlias

import msgspec

from tidegate.core.distributions import Durations, Lognormal
from tidegate.core.errors import ConfigError
from tidegate.core.planner.tails import SHAPE_MAX, Tail, mean_of_max, tail_of

Term: TypeAlias = Literal["rollouts", "stragglers", "rewards", "train", "weights"]

LAG_WALL = 4.0
PENALTY_PER_VERSION = 0.03
# Less is inside of what a run's own noise hides, and is not worth a correction of stale data.
SPEEDUP_MIN = 1.1

TAKES: dict[Term, str] = {
    "rollouts": "Rollouts take",
    "stragglers": "Stragglers take",
    "rewards": "Rewards take",
    "train": "Training takes",
    "weights": "Weights take",
}
ADVICE: dict[Term, str] = {
    "rollouts": "add actors",
    "stragglers": "let asynchrony fill the gaps, or cap the longest rollouts",
    "rewards": "add environment workers, or a deadline for rewards",
    "train": "add a learner replica",
    "weights": "send less at each version, or publish every other one",
}


class RolloutLoop(msgspec.Struct, frozen=True):
    """What a step is made of.

    ``group``: rollouts a step (K). ``train_s``: one update of them. ``reward`` None: rewards cost no time.
    """

    rollout: Durations
    num_slots: int
    group: int
    train_s: float
    weight_sync_s: float = 0.0
    reward: Durations | None = None
    max_lag: int = 4
    lag_wall: float = LAG_WALL
    penalty_per_version: float = PENALTY_PER_VERSION


class Synchronous(msgspec.Struct, frozen=True):
    """One synchronous step, in seconds. The first five add up to ``wall_s``.

    ``work_s``: a place's mean time in rollouts; ``straggler_wait_s``: its wait for the slowest one;
    ``learner_stall_s``: its wait for the update. ``rollout_tail_s``: the first two, in which the learner idles.
    """

    work_s: float
    straggler_wait_s: float
    reward_tail_s: float
    learner_stall_s: float
    weight_sync_s: float
    rollout_tail_s: float
    wall_s: float
    samples_per_s: float
    actor_idle_ratio: float
    learner_idle_ratio: float


class Asynchronous(msgspec.Struct, frozen=True):
    """One asynchronous step, in seconds. ``natural_lag``: mean versions without a budget; None where it grows for ever.

    ``lag_mean`` is held to ``max_lag`` by admission. ``effective_wall_s``: the wall, longer by the freshness penalty.
    """

    wall_s: float
    effective_wall_s: float
    samples_per_s: float
    bound_by: Literal["actors", "learner", "admission"]
    natural_lag: float | None
    lag_mean: float
    freshness: float
    actor_idle_ratio: float
    learner_idle_ratio: float


class RolloutPlan(msgspec.Struct, frozen=True):
    """Both steps, the speedup of effective samples, the term that a synchronous step spends most on, and the advice."""

    tail: Tail
    synchronous: Synchronous
    asynchronous: Asynchronous
    speedup: float
    dominant: Term
    dominant_share: float
    recommendation: str


def plan_rollouts(loop: RolloutLoop) -> RolloutPlan:
    """Work out both steps.

    Raises:
        ConfigError: a count is below 1, or a duration is negative.
    """
    _check(loop)
    synchronous = _synchronous(loop)
    asynchronous = _asynchronous(loop, synchronous)
    gain = synchronous.wall_s / asynchronous.effective_wall_s
    terms: dict[Term, float] = {
        "rollouts": synchronous.work_s,
        "stragglers": synchronous.straggler_wait_s,
        "rewards": synchronous.reward_tail_s,
        "train": synchronous.learner_stall_s,
        "weights": synchronous.weight_sync_s,
    }
    dominant = max(terms, key=lambda term: terms[term])
    share = terms[dominant] / synchronous.wall_s
    return RolloutPlan(
        tail=tail_of(loop.rollout, num_draws=min(loop.group, loop.num_slots)),
        synchronous=synchronous,
        asynchronous=asynchronous,
        speedup=gain,
        dominant=dominant,
        dominant_share=share,
        recommendation=_recommendation(loop, asynchronous, gain, dominant, share),
    )


def _check(loop: RolloutLoop) -> None:
    if loop.num_slots < 1 or loop.group < 1:
        raise ConfigError(
            f"{loop.group} rollouts a step on {loop.num_slots} places", fix="give 1 or more of both"
        )
    numbers = (loop.train_s, loop.weight_sync_s, loop.lag_wall, loop.penalty_per_version, float(loop.max_lag))
    if not all(math.isfinite(number) and number >= 0.0 for number in numbers):
        raise ConfigError("A duration, a lag or a penalty is negative or no number", fix="give 0 or more")
    if loop.rollout.mean_s <= 0.0:
        raise ConfigError("Rollouts take no time", fix="give their mean: --rollout exp:0.040")
    for durations in (loop.rollout, loop.reward):
        if isinstance(durations, Lognormal) and durations.c > SHAPE_MAX:
            raise ConfigError(
                f"A coefficient of variation of {durations.c:g} is above {SHAPE_MAX:g}",
                why="the slowest of such draws cannot be computed precisely",
                fix="rollouts of language models lie between 0.5 and 2",
            )


def _synchronous(loop: RolloutLoop) -> Synchronous:
    at_once = min(loop.group, loop.num_slots)
    work_s = loop.group * loop.rollout.mean_s / at_once
    rollout_tail_s = work_s - loop.rollout.mean_s + mean_of_max(loop.rollout, num_draws=at_once)
    reward_tail_s = mean_of_max(loop.reward, num_draws=loop.group) if loop.reward else 0.0
    wall_s = rollout_tail_s + reward_tail_s + loop.train_s + loop.weight_sync_s
    return Synchronous(
        work_s=work_s,
        straggler_wait_s=rollout_tail_s - work_s,
        reward_tail_s=reward_tail_s,
        learner_stall_s=loop.train_s,
        weight_sync_s=loop.weight_sync_s,
        rollout_tail_s=rollout_tail_s,
        wall_s=wall_s,
        samples_per_s=loop.group / wall_s,
        actor_idle_ratio=1.0 - loop.group * loop.rollout.mean_s / (loop.num_slots * wall_s),
        learner_idle_ratio=1.0 - loop.train_s / wall_s,
    )


def _asynchronous(loop: RolloutLoop, synchronous: Synchronous) -> Asynchronous:
    mean_s, group, slots = loop.rollout.mean_s, loop.group, loop.num_slots
    actors_s = group * mean_s / slots + loop.weight_sync_s
    free_s = max(actors_s, loop.train_s)
    growing = loop.train_s > actors_s
    natural_lag = None if growing else _lag(loop, wall_s=free_s)
    under_way = (loop.max_lag + 1) * group - (group - 1) / 2
    admitted_s = group * (mean_s + _after_rollout_s(loop)) / under_way if loop.max_lag else synchronous.wall_s
    wall_s = max(free_s, admitted_s)
    lag_mean = min(float(loop.max_lag), float("inf") if natural_lag is None else natural_lag)
    penalty = loop.penalty_per_version * max(0.0, lag_mean - loop.lag_wall)
    return Asynchronous(
        wall_s=wall_s,
        effective_wall_s=wall_s * (1.0 + penalty),
        samples_per_s=group / wall_s,
        bound_by="admission" if admitted_s > free_s else ("learner" if growing else "actors"),
        natural_lag=natural_lag,
        lag_mean=lag_mean,
        freshness=1.0 / (1.0 + penalty),
        actor_idle_ratio=1.0 - min(1.0, group * mean_s / (slots * wall_s)),
        learner_idle_ratio=1.0 - loop.train_s / wall_s,
    )


def _lag(loop: RolloutLoop, *, wall_s: float) -> float:
    instant = loop.train_s + loop.weight_sync_s == 0.0
    others = loop.num_slots - 1 if instant else loop.num_slots
    return others / loop.group + _after_rollout_s(loop) / wall_s


def _after_rollout_s(loop: RolloutLoop) -> float:
    return (loop.reward.mean_s if loop.reward else 0.0) + loop.train_s + loop.weight_sync_s


def _recommendation(
    loop: RolloutLoop, asynchronous: Asynchronous, gain: float, dominant: Term, share: float
) -> str:
    named = f"{TAKES[dominant]} {share:.0%} of a synchronous step"
    if gain < SPEEDUP_MIN:
        return (
            f"Stay synchronous (max_lag 0): asynchrony would bring {gain:.2f}×, less than correcting for stale data is"
            f" worth. {named}: {ADVICE[dominant]}."
        )
    hidden = ", and overlap hides them" if dominant in ("stragglers", "rewards") else ""
    idle = (
        f" A synchronous step uses {loop.group} of {loop.num_slots} slots."
        if loop.group < loop.num_slots
        else ""
    )
    promise = f"Go asynchronous: {gain:.2f}× the samples/s at a mean lag of {asynchronous.lag_mean:.1f}."
    advice = f"{promise} {named}{hidden}.{idle}"
    match asynchronous.bound_by:
        case "admission":
            return f"{advice} max_lag is the bottleneck then: one above {loop.max_lag} would raise the rate."
        case "learner":
            return f"{advice} The learner is the bottleneck then: {ADVICE['train']}."
        case "actors":
            return f"{advice} The actors are the bottleneck then: {ADVICE['rollouts']}."
