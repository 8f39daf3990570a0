"""What the staleness budget buys and costs: a table over ``max_lag``, with V-trace and with no correction.

Every run makes the same number of updates. On the way the run with V-trace gives steps and time to the target; the
mean return at the end is what distinguishes the objectives.
"""

import statistics
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.program import Program
from benchmarks.results import BenchResult, Goal, Row, Sample, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.steps_file import StepsFile, first_reaching
from benchmarks.training_run import STEPS_FILE, THREADS, remove_folder, up_command
from tidegate.cli.up.summary import read_summary
from tidegate.core.errors import UnavailableError
from tidegate.launch.log_tail import final_message

MAX_LAGS = (0, 1, 4, 16)
QUICK_MAX_LAGS = (0, 4)
UPDATES = 150
QUICK_UPDATES = 20
TARGET_RETURN = 475.0
RUN_TIMEOUT_S = 300.0

Objective = Literal["vtrace", "none"]
OBJECTIVES: tuple[Objective, ...] = ("vtrace", "none")


class Audited(msgspec.Struct, frozen=True):
    """What is read of a summary's audit."""

    balanced: bool
    max_lag_trained: int
    trained_twice: int


class SummaryFile(msgspec.Struct, frozen=True):
    """The fields read from ``summary.json`` (``cli.up.summary`` writes more)."""

    audit: Audited
    steps_per_cpu_s: float


class LagRun(msgspec.Struct, frozen=True):
    """One run of a fixed number of updates. ``final_return`` is over its last 100 episodes.

    ``seconds`` and the rates count from the first update; ``whole_`` is from `up` to the end of its report.
    """

    max_lag: int
    objective: Objective
    seed: int
    steps: int
    seconds: float
    steps_per_s: float
    steps_per_cpu_s: float
    whole_wall_s: float
    whole_cpu_s: float
    steps_to_target: int | None
    seconds_to_target: float | None
    final_return: float
    lag_mean: float
    lag_max: int
    balanced: bool
    max_lag_trained: int
    trained_twice: int


def run(setting: BenchSetting) -> BenchResult:
    """Seeds outermost, so that an interrupted round is balanced.

    Raises:
        UnavailableError: a platform made no update, or wrote no summary.
    """
    updates = QUICK_UPDATES if setting.quick else UPDATES
    runs: list[LagRun] = []
    for seed in range(1, setting.seeds + 1):
        for max_lag in QUICK_MAX_LAGS if setting.quick else MAX_LAGS:
            for objective in OBJECTIVES:
                runs.append(_measure(setting, max_lag, objective, seed, updates=updates))
                print_progress(
                    f"lag {max_lag} {objective} seed {seed}: return {runs[-1].final_return:.0f},"
                    f" lag {runs[-1].lag_mean:.2f} on average, {runs[-1].lag_max} at most"
                )
    table = markdown(runs, updates=updates)
    path = setting.output.with_name(f"{setting.output.stem}-lag.md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table, encoding="utf-8")
    return BenchResult(
        name="lag",
        rows=[_bound_row(runs, max_lag) for max_lag in sorted({each.max_lag for each in runs})],
        samples=[_sample(each) for each in runs],
        notes=[
            f"{sum(each.balanced for each in runs)} of {len(runs)} audits balanced,"
            f" {sum(each.trained_twice for each in runs)} trajectories trained twice",
            "wall s and CPU-s are of whole runs, with start and report; rates in the table begin at the first update",
            f"the table is also in {path}",
        ],
        table=table,
    )


def _measure(setting: BenchSetting, max_lag: int, objective: Objective, seed: int, *, updates: int) -> LagRun:
    folder = setting.folder / f"lag-{max_lag}-{objective}-{seed}"
    log = folder.with_name(f"{folder.name}.log")
    command = up_command(
        setting.run_file,
        folder=folder,
        until=f"version_step>={updates}",
        limit_s=RUN_TIMEOUT_S,
        overrides=[
            f"staleness.max_lag={max_lag}",
            f"learner.actor_critic.objective={objective}",
            f"seed={seed}",
        ],
    )
    with Program(command, log=log, environment=THREADS) as program:
        program.wait(timeout_s=2 * RUN_TIMEOUT_S)
        whole = program.end()
        points = [point for point in StepsFile(folder / STEPS_FILE).read() if point.step <= updates]
    summary = _read_summary(folder)
    if summary is None or len(points) < 2:
        raise UnavailableError(
            f"The run of max_lag {max_lag} made no update or wrote no summary",
            why=final_message(log),
            fix=f"see {log} and the logs in {folder}",
        )
    remove_folder(folder)
    reached = first_reaching(points, mean_return=TARGET_RETURN)
    first, last = points[0], points[-1]
    return LagRun(
        max_lag=max_lag,
        objective=objective,
        seed=seed,
        steps=last.env_steps,
        seconds=last.at_s - first.at_s,
        steps_per_s=(last.env_steps - first.env_steps) / (last.at_s - first.at_s),
        steps_per_cpu_s=summary.steps_per_cpu_s,
        whole_wall_s=whole.at_s - program.started_at_s,
        whole_cpu_s=whole.cpu_s,
        steps_to_target=reached.env_steps if reached is not None else None,
        seconds_to_target=reached.at_s - first.at_s if reached is not None else None,
        final_return=last.mean_return or 0.0,
        lag_mean=sum(point.lag_mean for point in points) / len(points),
        lag_max=max(point.lag_max for point in points),
        balanced=summary.audit.balanced,
        max_lag_trained=summary.audit.max_lag_trained,
        trained_twice=summary.audit.trained_twice,
    )


def _read_summary(folder: Path) -> SummaryFile | None:
    """The run's own summary; None when it made no update or wrote none."""
    try:
        return msgspec.convert(read_summary(folder), SummaryFile)
    except msgspec.ValidationError:
        return None


def _bound_row(runs: list[LagRun], max_lag: int) -> Row:
    """The measured lag against the budget: from the learner's lines, and from the ledger."""
    found = [float(max(each.lag_max, each.max_lag_trained)) for each in runs if each.max_lag == max_lag]
    goal = Goal(float(max_lag), "at_most", "figure", every=True)
    return row(f"largest lag at max_lag {max_lag}", "versions", found, goal=goal)


def _sample(each: LagRun) -> Sample:
    details = {
        "max_lag": each.max_lag,
        "seed": each.seed,
        "final_return": each.final_return,
        "lag_mean": each.lag_mean,
        "lag_max": each.lag_max,
        "balanced": float(each.balanced),
        "seconds": each.seconds,
        "steps_per_s": each.steps_per_s,
        "steps_per_cpu_s": each.steps_per_cpu_s,
    }
    if each.steps_to_target is not None and each.seconds_to_target is not None:
        details |= {"steps_to_target": each.steps_to_target, "seconds_to_target": each.seconds_to_target}
    return Sample(
        side="tidegate",
        label=f"max_lag {each.max_lag} {each.objective} seed {each.seed}",
        repetition=each.seed - 1,
        work=each.steps,
        unit="steps",
        wall_s=each.whole_wall_s,
        cpu_s=each.whole_cpu_s,
        details=details,
    )


def markdown(runs: list[LagRun], *, updates: int) -> str:
    """One line a budget; medians over the seeds, with the range where seeds differ."""
    lines = [
        f"| max_lag | steps/s | steps/CPU-s | lag mean | lag max | steps to {TARGET_RETURN:g} | seconds to it |"
        f" return after {updates} updates, V-trace | the same, no correction | audit |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for max_lag in sorted({each.max_lag for each in runs}):
        corrected = [each for each in runs if (each.max_lag, each.objective) == (max_lag, "vtrace")]
        uncorrected = [each for each in runs if (each.max_lag, each.objective) == (max_lag, "none")]
        both = corrected + uncorrected
        cells = [
            str(max_lag),
            _range([each.steps_per_s for each in corrected]),
            _range([each.steps_per_cpu_s for each in corrected]),
            f"{statistics.fmean(each.lag_mean for each in corrected):.2f}",
            str(max(each.lag_max for each in both)),
            _reached([each.steps_to_target for each in corrected]),
            _reached([each.seconds_to_target for each in corrected], digits=1),
            _range([each.final_return for each in corrected]),
            _range([each.final_return for each in uncorrected]),
            "balanced" if all(each.balanced for each in both) else "NOT balanced",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _range(values: list[float], *, digits: int = 0) -> str:
    if not values:
        return "–"
    middle = f"{statistics.median(values):,.{digits}f}"
    low, high = f"{min(values):,.{digits}f}", f"{max(values):,.{digits}f}"
    return middle if low == high else f"{middle} ({low}–{high})"


def _reached(values: list[int | None] | list[float | None], *, digits: int = 0) -> str:
    found = [float(value) for value in values if value is not None]
    missed = len(values) - len(found)
    return _range(found, digits=digits) + (f", {missed} of {len(values)} never" if missed else "")
