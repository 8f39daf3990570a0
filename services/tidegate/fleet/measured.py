"""A plan made of a real run: the times of its rollouts, updates and messages, and its rate and lag.

Rollouts are drawn from the measured times between a task's start and its end, made longer by the other work of an
actor. An update takes from one step's end to the next, without the wait for a batch. From actor to
store is one hop, and back to the queue is taken to be another.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean, median

import msgspec
import numpy as np

from tidegate.core.distributions import Fixed, Histogram, histogram_of
from tidegate.core.errors import NotFoundError
from tidegate.core.ids import TaskId, TrajectoryId, task_of
from tidegate.fleet.plan import FleetPlan
from tidegate.fleet.report import FleetReport, simulate_fleet

VALUES_MAX = 4096
# The warm-up at the start of a run is no part of its rate.
WARM_UP_SHARE = 0.2
STEPS_MIN = 10
# Environments that are busier than this are simulated as a queue; below, scoring is part of the hop.
SCORING_RATIO_MIN = 0.3


class StepTimes(msgspec.Struct, frozen=True):
    """Times of a step of the learner; ``at_s`` is its end."""

    at_s: float
    samples: int
    lag_mean: float
    wait_s: float
    train_s: float


class RolloutTimes(msgspec.Struct, frozen=True):
    """Times of a row of the ledger, in seconds since the epoch."""

    trajectory_id: TrajectoryId
    num_steps: int
    started_at_s: float
    finished_at_s: float
    accepted_at_s: float


class Setup(msgspec.Struct, frozen=True):
    """Settings of the run: ``actors`` counts slots, each of which runs one task; ``prefetch`` is per slot."""

    actors: int
    batch_size: int
    max_lag: int
    max_age_s: float
    max_running: int
    group_size: int
    pacing: bool = False
    prefetch: int = 0


class Shares(msgspec.Struct, frozen=True):
    """Means over the samples of a run: shares of an actor's time, milliseconds of a pull, and the environments."""

    busy: float = 1.0
    waiting: float = 0.0
    pull_ms: float = 0.0
    environments: int = 0
    environment_busy: float = 0.0
    scored_per_s: float = 0.0


class MeasuredFleet(msgspec.Struct, frozen=True):
    """The plan of a run, and its measured trajectories/s, environment steps or tokens/s, and mean lag."""

    plan: FleetPlan
    rollout_s: float
    learn_s: float
    hop_s: float
    steps_per_trajectory: float
    samples_per_s: float
    lag_mean: float


class Prediction(msgspec.Struct, frozen=True):
    """A simulated run beside the real one; errors as shares, of the lag in versions where it is below one."""

    actors: int
    measured_per_s: float
    predicted_per_s: float
    error: float
    measured_lag: float
    predicted_lag: float
    lag_error: float
    report: FleetReport


def measure(
    setup: Setup,
    *,
    steps: Sequence[StepTimes],
    rollouts: Iterable[RolloutTimes],
    shares: Shares,
    seed: int = 0,
) -> MeasuredFleet:
    """Measure a run from its steps, its ledger and its statistics.

    Raises:
        NotFoundError: it made too few steps for a rate.
    """
    if len(steps) < STEPS_MIN:
        raise NotFoundError(
            f"The run made {len(steps)} learner steps", why=f"a rate needs at least {STEPS_MIN}"
        )
    steady = list(steps[int(len(steps) * WARM_UP_SHARE) :])
    first, last = steady[0], steady[-1]
    trained = sum(step.samples for step in steady[1:])
    since_s = first.at_s
    rows = [row for row in rollouts if row.finished_at_s > row.started_at_s and row.accepted_at_s >= since_s]
    if not rows:
        raise NotFoundError("The run's ledger holds no rollout of its steady part")
    durations = list(_task_durations(rows).values())
    beside = _beside(shares)
    arrivals = [max(0.0, row.accepted_at_s - row.finished_at_s) for row in rows]
    scoring = shares.environments > 0 and shares.environment_busy >= SCORING_RATIO_MIN
    score_s = shares.environment_busy * shares.environments / shares.scored_per_s if scoring else 0.0
    hop_s = max(0.0, median(arrivals) - score_s)
    learn = [seconds for seconds in _update_durations(steady) if seconds > 0]
    plan = FleetPlan(
        actors=setup.actors,
        rollout=quantiles_of([seconds * beside for seconds in durations]),
        learn=quantiles_of(learn),
        batch_size=setup.batch_size,
        max_lag=setup.max_lag,
        max_age_s=setup.max_age_s,
        max_running=setup.max_running,
        pacing=setup.pacing,
        prefetch=setup.prefetch,
        group_size=setup.group_size,
        environments=shares.environments if scoring else 0,
        score=Fixed(score_s * setup.group_size),
        pull_s=shares.pull_ms / 1000,
        hop_s=hop_s,
        seed=seed,
    )
    return MeasuredFleet(
        plan=plan,
        rollout_s=plan.rollout.mean_s,
        learn_s=plan.learn.mean_s,
        hop_s=hop_s,
        steps_per_trajectory=fmean(row.num_steps for row in rows),
        samples_per_s=trained / (last.at_s - first.at_s),
        lag_mean=sum(step.lag_mean * step.samples for step in steady[1:]) / trained,
    )


def predict(measured: MeasuredFleet, *, horizon_s: float) -> Prediction:
    """Simulate the measured plan, and compare rate and lag."""
    report = simulate_fleet(measured.plan, horizon_s=horizon_s)
    return Prediction(
        actors=measured.plan.actors,
        measured_per_s=measured.samples_per_s,
        predicted_per_s=report.samples_per_s,
        error=report.samples_per_s / measured.samples_per_s - 1,
        measured_lag=measured.lag_mean,
        predicted_lag=report.lag_mean,
        lag_error=(report.lag_mean - measured.lag_mean) / max(1.0, measured.lag_mean),
        report=report,
    )


def quantiles_of(seconds: Sequence[float]) -> Histogram:
    """Durations as they were, each as likely; of very many, evenly spaced quantiles."""
    values = np.asarray(seconds)
    if len(values) > VALUES_MAX:
        values = np.quantile(values, (np.arange(VALUES_MAX) + 0.5) / VALUES_MAX)
    return histogram_of(values.tolist())


def _task_durations(rows: Iterable[RolloutTimes]) -> dict[TaskId, float]:
    """Seconds of each task: of a group, until its last sample ended."""
    spans: dict[TaskId, tuple[float, float]] = {}
    for row in rows:
        task = task_of(row.trajectory_id)
        began_s, ended_s = spans.get(task, (row.started_at_s, row.finished_at_s))
        spans[task] = (min(began_s, row.started_at_s), max(ended_s, row.finished_at_s))
    return {task: ended_s - began_s for task, (began_s, ended_s) in spans.items()}


def _beside(shares: Shares) -> float:
    """How many times as long as its rollout an actor is occupied: publishing, acknowledging, swapping weights."""
    if shares.busy <= 0:
        return 1.0
    return 1 + max(0.0, 1 - shares.busy - shares.waiting) / shares.busy


def _update_durations(steps: Sequence[StepTimes]) -> list[float]:
    """From each step's end to the next one's, without the wait for a batch."""
    return [max(step.train_s, step.at_s - before.at_s - step.wait_s) for before, step in pairwise(steps)]
