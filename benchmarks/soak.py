"""What a long run holds more and more of: memory and descriptors of each process, and disk by trajectory.

The ledger keeps few rows here, so that folding is a part of the run; by default it begins after millions of rows.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import linear_regression

import msgspec
import psutil

from benchmarks.disk import disk_bytes
from benchmarks.program import Program
from benchmarks.results import BenchResult, Row, Sample, row
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
from tidegate.launch.run_folder import read_processes
from tidegate.launch.usage import pss_mb

RUN_FILE = Path("runs/arithmetic.yaml")
ROWS_KEPT_MAX = 200_000
WARM_UP_S = 30.0
SOAK_S = 7200.0
SAMPLE_EVERY_S = 60.0
QUICK_SOAK_S = 30.0
QUICK_SAMPLE_EVERY_S = 5.0
DAYS = 30.0
SECONDS_A_DAY = 86_400.0


class Reading(msgspec.Struct, frozen=True):
    """At ``at_s``, with the trajectories trained by then. ``memory_mb`` is PSS.

    Disk in bytes of blocks, by the entries of the run folder.
    """

    at_s: float
    trajectories: int
    memory_mb: dict[str, float]
    descriptors: dict[str, int]
    disk_bytes: dict[str, int]


def run(setting: BenchSetting) -> BenchResult:
    """One run of two hours, read once a minute.

    Raises:
        UnavailableError: the platform ended early.
    """
    folder = setting.folder / "soak"
    soak_s, every_s = (QUICK_SOAK_S, QUICK_SAMPLE_EVERY_S) if setting.quick else (SOAK_S, SAMPLE_EVERY_S)
    command = up_command(
        RUN_FILE,
        folder=folder,
        limit_s=2 * soak_s + 600.0,
        overrides=[f"trajectory_store.rows_kept_max={ROWS_KEPT_MAX}"],
    )
    readings: list[Reading] = []
    log = folder.with_name(f"{folder.name}.log")
    steps = StepsFile(folder / STEPS_FILE)
    with Program(command, log=log, environment=THREADS) as program:
        start_s = wait_for_training(program, folder, after_s=WARM_UP_S) + WARM_UP_S
        for number in range(int(soak_s / every_s) + 1):
            sleep_until(program, start_s + number * every_s)
            readings.append(_read(folder, trajectories=sum(point.samples for point in steps.read())))
            print_progress(f"soak: {readings[-1].trajectories} trajectories after {number * every_s:g} s")
    audit = read_accounting(folder).audit
    remove_folder(folder)
    return BenchResult(
        name="soak",
        rows=list(rows(readings)),
        samples=[_sample(reading, readings[0]) for reading in readings],
        notes=[
            "slopes: least squares over the second half, when caches are full",
            f"the ledger keeps {ROWS_KEPT_MAX} rows;"
            f" {'balanced' if audit.balanced else 'NOT balanced'}, {audit.trained} trained",
        ],
    )


def _read(folder: Path, *, trajectories: int) -> Reading:
    record = read_processes(folder)
    entries = record.processes.items() if record is not None else ()
    memory_mb: dict[str, float] = {}
    descriptors: dict[str, int] = {}
    for name, entry in entries:
        if entry.pid is not None:
            memory_mb[name] = pss_mb(entry.pid)
            descriptors[name] = psutil.Process(entry.pid).num_fds()
    return Reading(
        at_s=time.time(),
        trajectories=trajectories,
        memory_mb=memory_mb,
        descriptors=descriptors,
        disk_bytes={path.name: disk_bytes(path) for path in folder.iterdir()},
    )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line with the least squared distance to points (x, y); 0 of fewer than two different x."""
    xs, ys = zip(*points, strict=True)
    return linear_regression(xs, ys).slope if len(set(xs)) > 1 else 0.0


def rows(readings: Sequence[Reading]) -> Iterator[Row]:
    """Growth by process and by folder over the second half of the readings."""
    late = readings[len(readings) // 2 :]
    hours = [(reading.at_s - late[0].at_s) / 3600.0 for reading in late]
    for name in sorted(late[-1].memory_mb):
        memory_mb = [reading.memory_mb.get(name, 0.0) for reading in late]
        yield row(f"{name}: memory", "MB", memory_mb)
        yield row(f"{name}: memory, growth", "MB/h", [slope(list(zip(hours, memory_mb, strict=True)))])
        yield row(f"{name}: descriptors", "", [float(reading.descriptors.get(name, 0)) for reading in late])
    millions = [reading.trajectories / 1e6 for reading in late]
    seconds = late[-1].at_s - late[0].at_s
    rate_per_s = (late[-1].trajectories - late[0].trajectories) / seconds if seconds else 0.0
    yield row("trajectories", "1/s", [rate_per_s])
    for name in sorted(late[-1].disk_bytes):
        disk_mb = [reading.disk_bytes.get(name, 0) / 1e6 for reading in late]
        grows_mb = slope(list(zip(millions, disk_mb, strict=True)))
        yield row(f"disk, {name}", "MB", [disk_mb[-1]])
        yield row(f"disk, {name}: growth", "MB a million", [grows_mb])
        after_mb = grows_mb * rate_per_s * DAYS * SECONDS_A_DAY / 1e6
        yield row(f"disk, {name}: growth in {DAYS:g} days at this rate", "MB", [after_mb])


def _sample(reading: Reading, first: Reading) -> Sample:
    details = {f"memory_mb.{name}": value for name, value in reading.memory_mb.items()}
    details |= {f"descriptors.{name}": float(value) for name, value in reading.descriptors.items()}
    details |= {f"disk_bytes.{name}": float(value) for name, value in reading.disk_bytes.items()}
    return Sample(
        side="tidegate",
        label="soak",
        repetition=0,
        work=float(reading.trajectories),
        unit="trajectories",
        wall_s=reading.at_s - first.at_s,
        cpu_s=0.0,
        details=details,
    )
