"""From `tidegate up` to the first gradient, with what came when on the way."""

import re
from datetime import datetime
from pathlib import Path

from benchmarks.program import Program
from benchmarks.results import BenchResult, Goal, Sample, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.training_run import THREADS, remove_folder, up_command, wait_for_training
from tidegate.launch.run_folder import RUN_JSON

REPETITIONS = 5
SECONDS_MAX = 4.0
CPU_SECONDS_MAX = 8.0
READY_EVENT = re.compile(r"timestamp=(\S+) .*\bevent=service_ready\b")
LINEAGE_EVENT = re.compile(r"timestamp=(\S+) .*\bevent=lineage_opened\b")
BROKER_LOG = "nats-server.log"


def run(setting: BenchSetting) -> BenchResult:
    """A first start that warms the disk's cache is thrown away; the others are measured.

    Raises:
        UnavailableError: a platform ended early.
    """
    _measure(setting, "warm-up")
    starts: list[dict[str, float]] = []
    samples: list[Sample] = []
    for repetition in range(setting.repeat(REPETITIONS)):
        found, cpu_s, others_cores = _measure(setting, str(repetition))
        starts.append(found)
        samples.append(
            Sample(
                side="tidegate",
                label="start",
                repetition=repetition,
                work=1,
                unit="start",
                wall_s=found["first gradient"],
                cpu_s=cpu_s,
                others_cores=others_cores,
                details=found,
            )
        )
        print_progress(f"startup {repetition + 1}: {found['first gradient']:.1f} s")
    names = sorted(starts[0], key=lambda name: starts[0][name])
    return BenchResult(
        name="startup",
        rows=[
            row(
                name,
                "s after `up`",
                [found[name] for found in starts if name in found],
                goal=Goal(SECONDS_MAX, "at_most", "figure") if name == "first gradient" else None,
            )
            for name in names
        ]
        + [
            row(
                "first gradient, all processes",
                "CPU-s",
                [sample.cpu_s for sample in samples],
                goal=Goal(CPU_SECONDS_MAX, "at_most", "figure"),
            )
        ],
        samples=samples,
        notes=[
            "CPU-s are of all processes until the first gradient; with few cores they are what takes the time"
        ],
    )


def _measure(setting: BenchSetting, name: str) -> tuple[dict[str, float], float, float]:
    """Seconds after the start of each thing that happened, CPU-seconds, and cores that others kept busy."""
    folder = setting.folder / f"startup-{name}"
    log = folder.with_name(f"{folder.name}.log")
    with Program(up_command(setting.run_file, folder=folder), log=log, environment=THREADS) as program:
        first_gradient_at_s = wait_for_training(program, folder, after_s=0.0)
        moment = program.moment()
        events = _events(folder)
    remove_folder(folder)
    events["first gradient"] = first_gradient_at_s
    wall_s = moment.at_s - program.started_at_s
    return (
        {event: at_s - program.started_at_s for event, at_s in events.items()},
        moment.cpu_s,
        max(0.0, (moment.machine_s - moment.cpu_s) / wall_s),
    )


def _events(folder: Path) -> dict[str, float]:
    """Seconds since the epoch."""
    events = {"run folder written": (folder / RUN_JSON).stat().st_mtime}
    for log in sorted((folder / "logs").glob("*.log")):
        text = log.read_text(encoding="utf-8", errors="replace")
        if log.name == BROKER_LOG:
            continue
        for pattern, what in ((READY_EVENT, "ready"), (LINEAGE_EVENT, "first version")):
            if match := pattern.search(text):
                events[f"{log.stem} {what}"] = datetime.fromisoformat(match[1]).timestamp()
    return events
