"""Memory of every process of a running CartPole platform, as PSS: shared pages divided among those who share them."""

from pathlib import Path

from benchmarks.cartpole import lengths
from benchmarks.program import Program
from benchmarks.results import BenchResult, Goal, row
from benchmarks.setting import BenchSetting
from benchmarks.training_run import (
    THREADS,
    remove_folder,
    up_command,
    wait_for_training,
)
from tidegate.core.errors import UnavailableError
from tidegate.launch.run_folder import read_processes
from tidegate.launch.usage import pss_mb

REPETITIONS = 3
LIGHT_MB_MAX = 80.0
TOTAL_MB_MAX = 1500.0
SUPERVISOR = "up"
# The library that a process which computes with torch has mapped.
TORCH_LIBRARY = "libtorch"


def run(setting: BenchSetting) -> BenchResult:
    """Read every process once it has trained for a while.

    Raises:
        UnavailableError: the platform ended early.
    """
    of_runs = [_measure(setting, repetition) for repetition in range(setting.repeat(REPETITIONS))]
    names = sorted(
        {name for found in of_runs for name in found}, key=lambda name: -of_runs[0].get(name, (0.0, False))[0]
    )
    rows = [
        row(
            name + (" (torch)" if torch else ""),
            "MB",
            [found[name][0] for found in of_runs if name in found],
            goal=None if torch or name == SUPERVISOR else Goal(LIGHT_MB_MAX, "at_most", "figure", every=True),
        )
        for name in names
        for torch in [any(found[name][1] for found in of_runs if name in found)]
    ]
    totals = [sum(memory_mb for memory_mb, _ in found.values()) for found in of_runs]
    rows.append(row("all together", "MB", totals, goal=Goal(TOTAL_MB_MAX, "at_most", "figure", every=True)))
    return BenchResult(
        name="memory",
        rows=rows,
        samples=[],
        notes=[
            f"PSS in MB of 10^6 bytes; {SUPERVISOR} is the supervisor, which draws the live view and the report"
        ],
    )


def _measure(setting: BenchSetting, repetition: int) -> dict[str, tuple[float, bool]]:
    """Megabytes of each process, and whether it has torch loaded."""
    folder = setting.folder / f"memory-{repetition}"
    log = folder.with_name(f"{folder.name}.log")
    length = lengths(setting)
    with Program(up_command(setting.run_file, folder=folder), log=log, environment=THREADS) as program:
        wait_for_training(program, folder, after_s=length.warm_up_s + length.window_s)
        record = read_processes(folder)
        if record is None:
            raise UnavailableError(f"{folder} names no processes")
        pids = {SUPERVISOR: program.pid}
        pids |= {name: entry.pid for name, entry in record.processes.items() if entry.pid is not None}
        found = {name: (pss_mb(pid), _has_torch(pid)) for name, pid in pids.items()}
    remove_folder(folder)
    return found


def _has_torch(pid: int) -> bool:
    return TORCH_LIBRARY in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
