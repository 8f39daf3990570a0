"""What asynchrony buys a language model: reward over time, asynchronous beside synchronous, on the same processes.

Three cases: answers as they are, short and alike; rollouts that take as long as if their lengths differed tenfold; and
verifiers besides that answer after a while, with a heavy tail. Waiting burns no CPU, as on an accelerator that writes
few long answers as slowly as many, so two cores show what a batch waits for. All runs hold the same processes, slots
and cores for as long as they last: a second of each costs the same. Time counts from the first evaluation at held-out
problems, which every run takes of the same policy before its first rollout.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.program import Program
from benchmarks.results import BenchResult, Goal, Row, Sample, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.steps_file import StepsFile
from benchmarks.training_run import (
    STEPS_FILE,
    THREADS,
    remove_folder,
    sleep_until,
    up_command,
    wait_for_training,
)
from tidegate.cli.accounting import read_accounting
from tidegate.core.errors import UnavailableError
from tidegate.runtime.run_event_log import read_events

RUN_FILE = Path("runs") / "arithmetic.yaml"
# Of lognormal times with this spread the 99th percentile is ten times the 10th.
LENGTHS = "workload.latency=lognormal:0.1:0.7"
VERIFIERS = "environment.score_latency=lognormal:0.1:2"
TAIL = "lengths and slow verifiers"
CASES: dict[str, tuple[str, ...]] = {"alike": (), "lengths": (LENGTHS,), TAIL: (LENGTHS, VERIFIERS)}
MAX_LAGS = (0, 4)
SHARED = (
    "actor.engine=torch",
    # One place for each rollout of a batch: what a synchronous step starts at once, and no more than that.
    "actor.slots=512",
    "environment.slots=512",
    "environment.max_ack_pending=1024",
    "actor.evaluation_problems_max=256",
    "task_queue.evaluation_every_versions=5",
)
RUN_TIMEOUT_S = 240.0
QUICK_RUN_S = 15.0
POLL_S = 0.5
TARGET_SOLVED = 0.75
# A run has solved the mean of its last evaluations on held-out problems: one of 256 problems is ±0.03.
EVALUATIONS = 3
FASTER_GOAL = 2.5


class Evaluation(msgspec.Struct, frozen=True):
    """Share of held-out problems solved, so many seconds after the first evaluation."""

    after_s: float
    solved: float


class OverlapRun(msgspec.Struct, frozen=True):
    """One run, until it stood at the target or its time was over.

    ``updates`` and the rates are of its steps from the first to the last; ``waste``: share of the ended that were
    dropped. ``cpu_s``: of all its processes, from its first gradient on.
    """

    case: str
    max_lag: int
    seed: int
    evaluations: list[Evaluation]
    updates: int
    updates_per_s: float
    lag_mean: float
    lag_max: int
    waste: float
    wall_s: float
    cpu_s: float
    balanced: bool

    def stood_at(self, after_s: float) -> float:
        """Share solved at a moment: the mean of the last evaluations by then."""
        return statistics.fmean(
            [each.solved for each in self.evaluations if each.after_s <= after_s][-EVALUATIONS:]
        )

    def reached_s(self) -> float | None:
        """Seconds until it stood at the target; None if it never did."""
        return reached_s(self.evaluations)


class Pair(msgspec.Struct, frozen=True):
    """The two runs of a case and seed."""

    ours: OverlapRun
    sync: OverlapRun

    @property
    def moment_s(self) -> float:
        """When the asynchronous run was done: the compute-seconds at which both are looked at."""
        reached = self.ours.reached_s()
        return self.ours.wall_s if reached is None else reached


def run(setting: BenchSetting) -> BenchResult:
    """Synchronous is the peer. Seeds outermost, so that an interrupted round is balanced.

    Raises:
        UnavailableError: a platform ended early, or looked at no held-out problems.
    """
    seeds = range(1 if setting.quick else setting.seeds)
    pairs = [
        Pair(*(_measure(setting, case, max_lag, seed) for max_lag in reversed(MAX_LAGS)))
        for seed in seeds
        for case in CASES
    ]
    runs = [each for pair in pairs for each in (pair.ours, pair.sync)]
    return BenchResult(
        name="overlap",
        rows=[figure for case in CASES for figure in _rows(case, pairs)],
        samples=[_sample(each) for each in runs],
        notes=[
            f"{RUN_FILE} with {', '.join(SHARED)}; synchronous is max_lag 0, asynchronous max_lag {MAX_LAGS[1]}",
            f"lengths: {LENGTHS}; slow verifiers: {VERIFIERS}",
            f"{sum(each.balanced for each in runs)} of {len(runs)} audits balanced",
        ],
        table=markdown(pairs),
    )


def _measure(setting: BenchSetting, case: str, max_lag: int, seed: int) -> OverlapRun:
    name = f"overlap-{list(CASES).index(case)}-{max_lag}-{seed}"
    folder, log = setting.folder / name, setting.folder / f"{name}.log"
    command = up_command(
        RUN_FILE,
        folder=folder,
        overrides=[f"seed={seed}", f"staleness.max_lag={max_lag}", *SHARED, *CASES[case]],
    )
    limit_s = QUICK_RUN_S if setting.quick else RUN_TIMEOUT_S
    steps = StepsFile(folder / STEPS_FILE)
    with Program(command, log=log, environment=THREADS) as program:
        wait_for_training(program, folder, after_s=0.0)
        before = program.moment()
        while (
            reached_s(evaluations := _evaluations(folder)) is None
            and program.moment().at_s - before.at_s < limit_s
        ):
            sleep_until(program, program.moment().at_s + POLL_S)
        after = program.moment()
        points = list(steps.read())
    if not evaluations:
        raise UnavailableError(f"{folder} has no evaluation of its first policy", fix="see its logs")
    audit = read_accounting(folder).audit
    remove_folder(folder)
    dropped = sum(audit.dropped.get(reason, 0) for reason in ("stale", "expired"))
    found = OverlapRun(
        case=case,
        max_lag=max_lag,
        seed=seed,
        evaluations=evaluations,
        updates=len(points),
        updates_per_s=(len(points) - 1) / max(POLL_S, points[-1].at_s - points[0].at_s),
        lag_mean=statistics.fmean(point.lag_mean for point in points),
        lag_max=max(point.lag_max for point in points),
        waste=dropped / max(1, dropped + audit.trained),
        wall_s=after.at_s - before.at_s,
        cpu_s=after.cpu_s - before.cpu_s,
        balanced=audit.balanced,
    )
    print_progress(f"{case}, max_lag {max_lag}, seed {seed}: {found.updates} updates, {_when(found)}")
    return found


def _evaluations(folder: Path) -> list[Evaluation]:
    """So far; the first gradient may come before the first of them."""
    evaluations = list(read_events(folder, "evaluation"))
    return [Evaluation(each["at_s"] - evaluations[0]["at_s"], each["solved_share"]) for each in evaluations]


def reached_s(evaluations: Sequence[Evaluation]) -> float | None:
    """Seconds until the mean of the last evaluations was at the target; None if it never was."""
    return next(
        (
            evaluations[last].after_s
            for last in range(EVALUATIONS - 1, len(evaluations))
            if statistics.fmean(each.solved for each in evaluations[last + 1 - EVALUATIONS : last + 1])
            >= TARGET_SOLVED
        ),
        None,
    )


def _when(each: OverlapRun) -> str:
    seconds = each.reached_s()
    return f"never {TARGET_SOLVED:g}" if seconds is None else f"{TARGET_SOLVED:g} after {seconds:.0f} s"


def _rows(case: str, pairs: Sequence[Pair]) -> list[Row]:
    of_case = [pair for pair in pairs if pair.ours.case == case]
    # A run that never got there has no time; the table says so.
    times = [
        (ours, sync)
        for pair in of_case
        if (ours := pair.ours.reached_s()) is not None and (sync := pair.sync.reached_s()) is not None
    ]
    return [
        row(
            f"{case}: to {TARGET_SOLVED:g} solved",
            "s",
            [ours for ours, _ in times],
            [sync for _, sync in times],
            goal=Goal(1.0 / FASTER_GOAL, "at_most", "ratio") if case == TAIL else None,
        ),
        row(
            f"{case}: solved when the asynchronous run was done",
            "share",
            [pair.ours.stood_at(pair.moment_s) for pair in of_case],
            [pair.sync.stood_at(pair.moment_s) for pair in of_case],
        ),
        row(
            f"{case}: updates",
            "a second",
            [pair.ours.updates_per_s for pair in of_case],
            [pair.sync.updates_per_s for pair in of_case],
        ),
    ]


def markdown(pairs: Sequence[Pair]) -> str:
    """One line a run; ``meanwhile``: where it stood when the asynchronous one of its pair was done."""
    lines = [
        f"| case | max_lag | seed | s to {TARGET_SOLVED:g} | meanwhile | updates | lag mean / max | dropped | CPU-s |",
        "|---" * 9 + "|",
    ]
    for pair in pairs:
        for each in (pair.sync, pair.ours):
            seconds = each.reached_s()
            lines.append(
                f"| {each.case} | {each.max_lag} | {each.seed} | {'–' if seconds is None else f'{seconds:.0f}'} |"
                f" {each.stood_at(pair.moment_s):.2f} | {each.updates} | {each.lag_mean:.1f} / {each.lag_max} |"
                f" {each.waste:.1%} | {each.cpu_s:.0f} |"
            )
    return "\n".join(lines) + "\n"


def _sample(each: OverlapRun) -> Sample:
    return Sample(
        side="tidegate" if each.max_lag else "peer",
        label=f"{each.case}, max_lag {each.max_lag}, seed {each.seed}",
        repetition=each.seed,
        work=float(each.updates),
        unit="updates",
        wall_s=each.wall_s,
        cpu_s=each.cpu_s,
        details={
            "lag_mean": each.lag_mean,
            "lag_max": float(each.lag_max),
            "waste": each.waste,
            "balanced": float(each.balanced),
            **{
                f"solved after {evaluation.after_s:.1f} s": evaluation.solved
                for evaluation in each.evaluations
            },
        },
    )
