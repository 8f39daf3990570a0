"""What environments that raise, return NaN or hang cost: a run with them and a healthy one at the same time.

Side by side, what else the machine does happens to both. The healthy run takes what a hanging one leaves of the cores,
so the ratio of that case is a lower bound.
"""

from pathlib import Path

import msgspec

from benchmarks import faulty_envs
from benchmarks.results import BenchResult, Goal, Row, Sample, Side, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.training_run import Length, Window, measure_beside, remove_folder, up_command
from tidegate.cli.up.summary import read_summary
from tidegate.core.errors import TidegateError

REPETITIONS = 3
WARM_UP_S = 5.0
WINDOW_S = 30.0
# Of the environment that hangs: its actor notices after workload.step_timeout_s (30 s), and is started again.
LONG_WINDOW_S = 75.0
QUICK_WINDOW_S = 10.0


class Case(msgspec.Struct, frozen=True):
    """``ratio_min`` of the healthy run's steps a second; ``cause``: what the screen must say."""

    name: str
    env: str
    ratio_min: float
    window_s: float
    cause: str


CASES: tuple[Case, ...] = (
    Case("copies raise every 5,000 steps", faulty_envs.RAISES, 0.9, WINDOW_S, "raised in step: ValueError"),
    Case(
        "1 copy of 16 observes NaN",
        faulty_envs.NOT_FINITE,
        0.9,
        WINDOW_S,
        "a number that is not finite from step: observations[0] is nan",
    ),
    Case("1 actor of 2 hangs for ever", faulty_envs.HANGS, 0.45, LONG_WINDOW_S, "does not return from step"),
)


class Found(msgspec.Struct, frozen=True):
    """One run. ``says_cause``: whether the screen told it."""

    window: Window
    balanced: bool
    says_cause: bool
    restarts: int


def run(setting: BenchSetting) -> BenchResult:
    """Each case several times.

    Raises:
        UnavailableError: a platform ended early.
        TidegateError: one wrote no summary.
    """
    rows: list[Row] = []
    samples: list[Sample] = []
    for case in CASES:
        faulty: list[Found] = []
        healthy: list[Found] = []
        for repetition in range(setting.repeat(REPETITIONS)):
            found = _measure(setting, case, repetition)
            faulty.append(found["tidegate"])
            healthy.append(found["peer"])
            samples += [_sample(case, side, repetition, each) for side, each in found.items()]
            ratio = found["tidegate"].window.steps / found["peer"].window.steps
            print_progress(f"faults, {case.name}, {repetition + 1}: {ratio:.2f} of the healthy run's steps")
        rows += _rows(case, faulty, healthy)
    return BenchResult(
        name="faults",
        rows=rows,
        samples=samples,
        notes=["peer: the same environment without the fault; steps that failed are no steps"],
    )


def _measure(setting: BenchSetting, case: Case, repetition: int) -> dict[Side, Found]:
    sides: tuple[Side, ...] = ("tidegate", "peer") if repetition % 2 == 0 else ("peer", "tidegate")
    folders = {side: setting.folder / f"faults-{CASES.index(case)}-{side}-{repetition}" for side in sides}
    commands = {
        side: up_command(
            setting.run_file,
            folder=folders[side],
            overrides=[
                f'workload.env="{case.env if side == "tidegate" else faulty_envs.HEALTHY}"',
                f"seed={repetition + 1}",
            ],
        )
        for side in sides
    }
    window_s = QUICK_WINDOW_S if setting.quick else case.window_s
    windows = measure_beside(commands, folders, Length(WARM_UP_S, window_s))
    found: dict[Side, Found] = {side: _found(folders[side], case, windows[side]) for side in sides}
    for folder in folders.values():
        remove_folder(folder)
    return found


def _found(folder: Path, case: Case, window: Window) -> Found:
    summary = read_summary(folder)
    log = folder.with_name(f"{folder.name}.log")
    if summary is None:
        raise TidegateError(f"The run in {folder} wrote no summary", fix=f"see {log}")
    return Found(
        window=window,
        balanced=bool(summary["audit"]["balanced"]),
        says_cause=case.cause in " ".join(log.read_text(encoding="utf-8").split()),
        restarts=sum(summary["restarts"].values()),
    )


def _rows(case: Case, faulty: list[Found], healthy: list[Found]) -> list[Row]:
    always = Goal(1.0, "at_least", "figure", every=True)
    return [
        row(
            f"{case.name}: steps a second",
            "steps/s",
            [each.window.steps_per_s for each in faulty],
            [each.window.steps_per_s for each in healthy],
            goal=Goal(case.ratio_min, "at_least", "ratio"),
        ),
        row(
            f"{case.name}: steps a CPU-second",
            "steps/CPU-s",
            [each.window.steps_per_cpu_s for each in faulty],
            [each.window.steps_per_cpu_s for each in healthy],
        ),
        row(f"{case.name}: audit balanced", "of 1", [float(each.balanced) for each in faulty], goal=always),
        row(
            f"{case.name}: cause on the screen",
            "of 1",
            [float(each.says_cause) for each in faulty],
            goal=always,
        ),
        row(f"{case.name}: restarts", "", [float(each.restarts) for each in faulty]),
    ]


def _sample(case: Case, side: Side, repetition: int, found: Found) -> Sample:
    window = found.window
    return Sample(
        side=side,
        label=case.name,
        repetition=repetition,
        work=window.steps,
        unit="steps",
        wall_s=window.wall_s,
        cpu_s=window.cpu_s,
        others_cores=window.others_cores,
    )
