"""What asynchrony buys when rollouts take unequal time: eight actors that mostly wait, with and without a tail.

The same run four times: synchronous (``max_lag`` 0) and asynchronous, with rollout times that are lognormal and with
rollout times that are all the same. Each has the same resources for the same time, which is what a compute-second
costs; the score is the mean return after a while, well before the task is solved by all of them.
"""

from typing import Literal

import msgspec

from benchmarks.program import Program
from benchmarks.results import BenchResult, Row, Sample, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.steps_file import StepPoint, StepsFile, first_reaching
from benchmarks.training_run import (
    STEPS_FILE,
    THREADS,
    remove_folder,
    sleep_until,
    up_command,
    wait_for_training,
)
from tidegate.cli.accounting import read_accounting

NUM_ACTORS = 8
ROLLOUT_S = 0.5
ASYNC_MAX_LAG = 4
# One rollout of each actor: what a synchronous round waits for.
BATCH_SIZE = NUM_ACTORS
RUN_S = 75.0
QUICK_RUN_S = 20.0
EARLY_S = 15.0
TARGET_RETURN = 475.0

Tail = Literal["lognormal", "fixed"]
LATENCIES: dict[Tail, str] = {"lognormal": f"lognormal:{ROLLOUT_S}:1", "fixed": f"fixed:{ROLLOUT_S}"}
MAX_LAGS = (0, ASYNC_MAX_LAG)


class TailRun(msgspec.Struct, frozen=True):
    """One run.

    ``return_early``, ``return_late``: the mean return over the last 100 episodes ``EARLY_S`` after the first gradient
    and when the time was over. ``solved_s``: from the first gradient to a mean return of 475, None if it never was.
    """

    tail: Tail
    max_lag: int
    seed: int
    samples_per_s: float
    learner_idle: float
    return_early: float
    return_late: float
    solved_s: float | None
    lag_mean: float
    lag_max: int
    updates: int
    wall_s: float
    cpu_s: float
    balanced: bool


def run(setting: BenchSetting) -> BenchResult:
    """Synchronous is the peer.

    Raises:
        UnavailableError: a platform ended early.
    """
    runs = [
        _measure(setting, tail, max_lag, seed)
        for seed in range(1, setting.seeds + 1)
        for tail in LATENCIES
        for max_lag in MAX_LAGS
    ]
    return BenchResult(
        name="tails",
        rows=[figure for tail in LATENCIES for figure in _rows(tail, runs)],
        samples=[_sample(each) for each in runs],
        notes=[
            f"{NUM_ACTORS} actors, rollouts of {ROLLOUT_S:g} s on average, batches of {BATCH_SIZE};"
            f" asynchronous with max_lag {ASYNC_MAX_LAG}, synchronous with max_lag 0",
            f"{sum(each.balanced for each in runs)} of {len(runs)} audits balanced",
        ],
    )


def _measure(setting: BenchSetting, tail: Tail, max_lag: int, seed: int) -> TailRun:
    folder = setting.folder / f"tails-{tail}-{max_lag}-{seed}"
    log = folder.with_name(f"{folder.name}.log")
    command = up_command(
        setting.run_file,
        folder=folder,
        overrides=[
            f"seed={seed}",
            f"staleness.max_lag={max_lag}",
            f"workload.latency={LATENCIES[tail]}",
            f"batch_size={BATCH_SIZE}",
            # Room for a rollout of each actor beside the batch that waits.
            f"max_running={2 * NUM_ACTORS}",
            f"actor.replicas={NUM_ACTORS}",
        ],
    )
    steps = StepsFile(folder / STEPS_FILE)
    with Program(command, log=log, environment=THREADS) as program:
        first_gradient_at_s = wait_for_training(program, folder, after_s=0.0)
        before = program.moment()
        sleep_until(program, first_gradient_at_s + (QUICK_RUN_S if setting.quick else RUN_S))
        after = program.moment()
        points = list(steps.read())
    balanced = read_accounting(folder).audit.balanced
    remove_folder(folder)
    found = _summary(tail, max_lag, seed, points, wall_s=after.at_s - before.at_s)
    found = msgspec.structs.replace(found, cpu_s=after.cpu_s - before.cpu_s, balanced=balanced)
    print_progress(
        f"tails {tail} max_lag {max_lag} seed {seed}: {found.samples_per_s:.1f} samples/s, learner idle"
        f" {found.learner_idle:.0%}, return {found.return_early:.0f} after {EARLY_S:g} s, lag {found.lag_mean:.1f}"
    )
    return found


def _summary(tail: Tail, max_lag: int, seed: int, points: list[StepPoint], *, wall_s: float) -> TailRun:
    # The first step waited for the platform to start.
    later = points[1:]
    elapsed_s = points[-1].at_s - points[0].at_s
    solved = first_reaching(points, mean_return=TARGET_RETURN)
    return TailRun(
        tail=tail,
        max_lag=max_lag,
        seed=seed,
        samples_per_s=sum(point.samples for point in later) / elapsed_s,
        learner_idle=sum(point.wait_s for point in later) / elapsed_s,
        return_early=_return_at(points, points[0].at_s + EARLY_S),
        return_late=points[-1].mean_return or 0.0,
        solved_s=solved.at_s - points[0].at_s if solved is not None else None,
        lag_mean=sum(point.lag_mean for point in later) / len(later),
        lag_max=max(point.lag_max for point in later),
        updates=len(points),
        wall_s=wall_s,
        cpu_s=0.0,
        balanced=False,
    )


def _return_at(points: list[StepPoint], at_s: float) -> float:
    """The mean return as it stood at a moment; 0 before the first episode ended."""
    known = [point.mean_return for point in points if point.at_s <= at_s and point.mean_return is not None]
    return known[-1] if known else 0.0


def _rows(tail: Tail, runs: list[TailRun]) -> list[Row]:
    ours = [each for each in runs if each.tail == tail and each.max_lag > 0]
    sync = [each for each in runs if each.tail == tail and each.max_lag == 0]
    title = f"{tail} rollouts, asynchronous beside synchronous"
    return [
        row(title, "samples/s", [each.samples_per_s for each in ours], [each.samples_per_s for each in sync]),
        row(
            title, "learner idle", [each.learner_idle for each in ours], [each.learner_idle for each in sync]
        ),
        row(
            f"{title}, after {EARLY_S:g} s",
            "return",
            [each.return_early for each in ours],
            [each.return_early for each in sync],
        ),
        row(
            f"{title}, to a return of {TARGET_RETURN:g}",
            "s",
            [each.solved_s for each in ours if each.solved_s is not None],
            [each.solved_s for each in sync if each.solved_s is not None]
            if all(each.solved_s is not None for each in (*ours, *sync))
            else (),
        ),
    ]


def _sample(each: TailRun) -> Sample:
    return Sample(
        side="tidegate" if each.max_lag else "peer",
        label=f"{each.tail}, max_lag {each.max_lag}",
        repetition=each.seed - 1,
        work=each.samples_per_s * each.wall_s,
        unit="samples",
        wall_s=each.wall_s,
        cpu_s=each.cpu_s,
        details={
            "updates": float(each.updates),
            "learner_idle": each.learner_idle,
            "return_early": each.return_early,
            "return_late": each.return_late,
            "solved_s": -1.0 if each.solved_s is None else each.solved_s,
            "lag_mean": each.lag_mean,
            "lag_max": float(each.lag_max),
            "balanced": float(each.balanced),
        },
    )
