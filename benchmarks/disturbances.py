"""One service made slow for a while in the middle of a run: what staleness, waste, the diagnosis and recovery do.

SIGSTOP and SIGCONT make it slow (``cli.throttle``), so the service itself is the ordinary one.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.program import Program
from benchmarks.results import BenchResult, Goal, Row, Sample, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.steps_file import StepPoint, StepsFile
from benchmarks.training_run import (
    STEPS_FILE,
    THREADS,
    remove_folder,
    sleep_until,
    up_command,
    wait_for_training,
)
from tidegate.cli.accounting import RunAccounting, read_accounting
from tidegate.cli.samples import read_samples
from tidegate.cli.throttle import pids_of, slow_down
from tidegate.core.errors import TidegateError
from tidegate.core.records import DROP_REASONS

WASTE_MAX = 0.02
RECOVERED_SHARE = 0.95
NAMED_SHARE = 0.8
# One sample of throughput: several learner steps.
SAMPLE_S = 3.0
WARM_UP_S = 8.0
BASELINE_S = 15.0
RECOVERY_TIMEOUT_S = 30.0
DISTURBED_S = 60.0
QUICK_DISTURBED_S = 15.0


class Case(msgspec.Struct, frozen=True):
    """``service`` is ``factor`` times slower in a run of ``run_file``; ``named``: what the diagnosis may name."""

    service: str
    factor: float
    run_file: Path
    named: frozenset[str]


CASES: tuple[Case, ...] = (
    Case("learner", 3.0, Path("runs/cartpole.yaml"), frozenset({"learner"})),
    Case("weight_distribution", 40.0, Path("runs/cartpole.yaml"), frozenset({"weights"})),
    Case("environment", 100.0, Path("runs/arithmetic.yaml"), frozenset({"environment"})),
)


class Found(msgspec.Struct, frozen=True):
    """One case. Rates in trajectories a second; ``recovery_s`` is None when throughput did not return in time."""

    case: Case
    before_per_s: float
    during_per_s: float
    recovery_s: float | None
    lag_p95: int
    lag_max: int
    max_lag: int
    waste: float
    attributed: dict[str, float]
    balanced: bool
    trained_twice: int

    def named(self) -> float:
        """Share of the samples in which the diagnosis names the right bottleneck."""
        return sum(share for name, share in self.attributed.items() if name in self.case.named)


def run(setting: BenchSetting) -> BenchResult:
    """Each case once, in a run of its own.

    Raises:
        UnavailableError: a platform ended early.
    """
    found = [_measure(setting, case) for case in CASES]
    return BenchResult(
        name="disturbances",
        rows=[figure for each in found for figure in _rows(each)],
        samples=[_sample(each) for each in found],
        notes=[_note(each) for each in found],
    )


def _measure(setting: BenchSetting, case: Case) -> Found:
    folder = setting.folder / f"disturbed-{case.service}"
    log = folder.with_name(f"{folder.name}.log")
    disturbed_s = QUICK_DISTURBED_S if setting.quick else DISTURBED_S
    command = up_command(case.run_file, folder=folder)
    steps = StepsFile(folder / STEPS_FILE)
    with Program(command, log=log, environment=THREADS) as program:
        wait_for_training(program, folder, after_s=WARM_UP_S)
        began_s = program.moment().at_s
        sleep_until(program, began_s + BASELINE_S)
        accounting_before = read_accounting(folder)
        slowed_s = program.moment().at_s
        slow_down(lambda: pids_of(folder, case.service), factor=case.factor, duration_s=disturbed_s)
        freed_s = program.moment().at_s
        before_per_s = rate(steps.read(), began_s, slowed_s)
        sleep_until(program, freed_s + RECOVERY_TIMEOUT_S)
        accounting_after = read_accounting(folder)
        points = list(steps.read())
    accounting = read_accounting(folder)
    # The diagnosis averages over ten seconds: the first part of the disturbance still shows the time before it.
    late_s = slowed_s + disturbed_s / 2
    attributed = Counter(
        sample["bottleneck"] for sample in read_samples(folder) if late_s <= sample["at_s"] < freed_s
    )
    lags = lags_of([point for point in points if slowed_s <= point.at_s < freed_s])
    found = Found(
        case=case,
        before_per_s=before_per_s,
        during_per_s=rate(points, slowed_s, freed_s),
        recovery_s=recovery_s(points, freed_s, wanted_per_s=RECOVERED_SHARE * before_per_s),
        lag_p95=lags[int(0.95 * (len(lags) - 1))],
        lag_max=lags[-1],
        max_lag=accounting.audit.max_lag or 0,
        waste=waste(accounting_before, accounting_after),
        attributed={name: count / attributed.total() for name, count in attributed.items()},
        balanced=accounting.audit.balanced,
        trained_twice=accounting.audit.trained_twice,
    )
    remove_folder(folder)
    print_progress(f"disturbances {_note(found)}")
    return found


def lags_of(points: Sequence[StepPoint]) -> list[int]:
    """The lag of each trajectory that these steps trained, in ascending order.

    Raises:
        TidegateError: there is none, so that nothing could be said of the budget.
    """
    lags = Counter[int]()
    for point in points:
        lags.update(point.by_lag)
    if not lags:
        raise TidegateError(
            "No step of the disturbed time says its trajectories' lags",
            why="nothing was trained meanwhile, or steps.jsonl has other fields than the bench reads",
        )
    return sorted(lags.elements())


def rate(points: Sequence[StepPoint], start_s: float, stop_s: float) -> float:
    """Trajectories trained a second between two moments."""
    return sum(point.samples for point in points if start_s <= point.at_s < stop_s) / (stop_s - start_s)


def recovery_s(points: Sequence[StepPoint], freed_s: float, *, wanted_per_s: float) -> float | None:
    """Seconds from the end of the disturbance to the first sample of ``SAMPLE_S`` at the wanted rate."""
    last_s = points[-1].at_s if points else freed_s
    starts = (point.at_s for point in points if freed_s <= point.at_s <= last_s - SAMPLE_S)
    back = (at_s for at_s in starts if rate(points, at_s, at_s + SAMPLE_S) >= wanted_per_s)
    returned_s = next(back, None)
    return None if returned_s is None else returned_s - freed_s


def waste(before: RunAccounting, after: RunAccounting) -> float:
    """Share of what ended between two audits that ended without a gradient."""
    trained = after.audit.trained - before.audit.trained
    dropped = sum(
        after.audit.dropped.get(reason, 0) - before.audit.dropped.get(reason, 0) for reason in DROP_REASONS
    )
    if trained + dropped <= 0:
        raise TidegateError(
            "Nothing was trained or dropped while a service was slow", fix="see the run's logs"
        )
    return dropped / (trained + dropped)


def _rows(found: Found) -> list[Row]:
    name = f"{found.case.service} {found.case.factor:g} times slower"
    return [
        row(f"{name}: lag p95", "versions", [found.lag_p95], goal=Goal(found.max_lag, "at_most", "figure")),
        row(f"{name}: waste", "share", [found.waste], goal=Goal(WASTE_MAX, "at_most", "figure")),
        row(
            f"{name}: bottleneck named",
            "share",
            [found.named()],
            goal=Goal(NAMED_SHARE, "at_least", "figure"),
        ),
        row(
            f"{name}: back to 95 %",
            "s",
            [found.recovery_s if found.recovery_s is not None else RECOVERY_TIMEOUT_S],
            goal=Goal(RECOVERY_TIMEOUT_S - SAMPLE_S, "at_most", "figure"),
        ),
        row(f"{name}: trajectories/s", "1/s", [found.during_per_s], [found.before_per_s]),
    ]


def _sample(found: Found) -> Sample:
    details = {
        "lag_p95": float(found.lag_p95),
        "lag_max": float(found.lag_max),
        "waste": found.waste,
        "balanced": float(found.balanced),
        "trained_twice": float(found.trained_twice),
        "recovery_s": -1.0 if found.recovery_s is None else found.recovery_s,
        **{f"bottleneck.{name}": share for name, share in found.attributed.items()},
    }
    return Sample(
        side="tidegate",
        label=f"{found.case.service} x{found.case.factor:g}",
        repetition=0,
        work=found.during_per_s,
        unit="trajectories",
        wall_s=1.0,
        cpu_s=0.0,
        details=details,
    )


def _note(found: Found) -> str:
    attributed = ", ".join(f"{name} {share:.0%}" for name, share in sorted(found.attributed.items()))
    back = "not back in time" if found.recovery_s is None else f"back to 95 % after {found.recovery_s:.1f} s"
    return (
        f"{found.case.service} {found.case.factor:g} times slower: {found.before_per_s:.1f} to"
        f" {found.during_per_s:.1f} trajectories/s, lag p95 {found.lag_p95} and at most {found.lag_max} of"
        f" {found.max_lag}, waste {found.waste:.2%}, bottleneck: {attributed}; {back};"
        f" {'balanced' if found.balanced else 'NOT balanced'}, {found.trained_twice} trained twice"
    )
