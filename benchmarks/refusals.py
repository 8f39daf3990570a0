"""From `tidegate up` to the sentence why a run cannot work."""

import sys
from pathlib import Path

from benchmarks.program import Program
from benchmarks.results import BenchResult, Goal, Sample, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.wrong_runs import WRONG_RUNS, write_modules
from tidegate.core.errors import UnavailableError
from tidegate.launch.log_tail import final_message

REPETITIONS = 3
SECONDS_MAX = 2.0
CPU_SECONDS_MAX = 1.5
TIMEOUT_S = 120.0
EXIT_REFUSED = 2


def run(setting: BenchSetting) -> BenchResult:
    """All wrong run files in turns; a first one that warms the disk's cache is thrown away.

    Raises:
        UnavailableError: a run was not refused.
    """
    folder = setting.folder / "refusals"
    folder.mkdir(parents=True, exist_ok=True)
    write_modules(folder)
    _measure(setting, folder, next(iter(WRONG_RUNS)), -1)
    samples = [
        _measure(setting, folder, case, repetition)
        for repetition in range(setting.repeat(REPETITIONS))
        for case in WRONG_RUNS
    ]
    rows = [
        row(f"{case}: {what}", unit, values, goal=Goal(bound, "at_most", "figure"))
        for case in WRONG_RUNS
        for what, unit, bound, values in (
            (
                "from `up` to its end",
                "s",
                SECONDS_MAX,
                [each.wall_s for each in samples if each.label == case],
            ),
            (
                "all processes",
                "CPU-s",
                CPU_SECONDS_MAX,
                [each.cpu_s for each in samples if each.label == case],
            ),
        )
    ]
    return BenchResult(
        name="refusals",
        rows=rows,
        samples=samples,
        notes=[
            "the environment is tried while `up` loads; a fork server that loads torch by then is counted"
        ],
    )


def _measure(setting: BenchSetting, folder: Path, case: str, repetition: int) -> Sample:
    log = folder / f"{case.replace(' ', '-')}-{repetition}.log"
    overrides = [word for override in WRONG_RUNS[case] for word in ("--set", override)]
    command = [sys.executable, "-m", "tidegate.cli.main", "up", str(setting.run_file.resolve()), "--headless"]
    with Program([*command, *overrides], log=log, folder=folder) as program:
        program.wait(timeout_s=TIMEOUT_S)
        if program.exit_code != EXIT_REFUSED:
            raise UnavailableError(
                f"The run with {case} ended with exit code {program.exit_code} and not {EXIT_REFUSED}",
                why=final_message(log),
                fix=f"see {log}",
            )
        ended = program.end()
    wall_s = ended.at_s - program.started_at_s
    print_progress(f"refusals {case}: {wall_s:.1f} s, {ended.cpu_s:.2f} CPU-s")
    return Sample(
        side="tidegate",
        label=case,
        repetition=repetition,
        work=1,
        unit="refusal",
        wall_s=wall_s,
        cpu_s=ended.cpu_s,
        others_cores=max(0.0, (ended.machine_s - ended.cpu_s) / wall_s),
    )
