"""``python -m benchmarks``."""

import os
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from benchmarks.machine import read_machine
from benchmarks.process_tree import own_tree_cpu_s
from benchmarks.registry import BENCHES
from benchmarks.report import (
    FORMAT,
    BenchReport,
    default_path,
    print_machine,
    print_result,
    write_report,
)
from benchmarks.results import BenchResult
from benchmarks.setting import BenchSetting, print_progress
from tidegate.core.errors import ConfigError, TidegateError
from tidegate.runtime.loading import load

FOLDER = Path(".tidegate") / "bench"
RUN_FILE = Path("runs") / "cartpole.yaml"
# Columns of the tables where no terminal reports its width.
FILE_WIDTH = 160


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(help=f"Of {', '.join(BENCHES)}; none: all but those that take an hour."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", help="Where to keep the numbers.", metavar="FILE")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One short repetition of each.")] = False,
    repetitions: Annotated[
        int | None, typer.Option(min=1, max=100, help="Instead of each bench's own number.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Seeds of each setting where seeds differ.")] = 3,
    run_file: Annotated[
        Path, typer.Option("--run", help="The CartPole run file that is measured.")
    ] = RUN_FILE,
) -> None:
    """Measure the platform beside plain peers, print the ratios, keep a JSON.

    Exits 0 when everything could be measured, whatever the figures are.
    """
    chosen = names or [name for name, entry in BENCHES.items() if not entry.asked_for]
    for name in chosen:
        if name not in BENCHES:
            raise ConfigError(f"There is no bench {name!r}", fix=f"choose from {', '.join(BENCHES)}")
    if not run_file.is_file():
        raise ConfigError(f"There is no run file {run_file}", fix="name one with --run")
    started_at_s = time.time()
    path = json or default_path(FOLDER, started_at_s=started_at_s)
    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    machine = read_machine()
    print_machine(console, machine, quick=quick)
    setting = BenchSetting(
        run_file=run_file,
        # Of its own, so that a file written twice never meets what an interrupted round left behind.
        folder=path.with_name(f"{path.stem}-{os.getpid()}"),
        output=path,
        quick=quick,
        repetitions=repetitions,
        seeds=1 if quick else seeds,
    )
    results: list[BenchResult] = []
    for name in chosen:
        results.append(_run_one(name, setting))
        print_result(console, results[-1], summary=BENCHES[name].summary)
        # After each, so that an interrupted round keeps what it has.
        write_report(
            path,
            BenchReport(
                format=FORMAT,
                started_at_s=started_at_s,
                machine=machine,
                load_at_end=os.getloadavg(),
                quick=quick,
                run_file=str(run_file),
                benches=results,
            ),
        )
    console.print(f"\nkept in {path}", style="dim", highlight=False)
    raise typer.Exit(1 if any(result.problem for result in results) else 0)


def _run_one(name: str, setting: BenchSetting) -> BenchResult:
    """One bench with its own cost; an error that stops it is reported, and the other benches run."""
    print_progress(f"{name}: {BENCHES[name].summary}")
    started_s, started_cpu_s = time.monotonic(), own_tree_cpu_s()
    try:
        result = load(BENCHES[name].target)(setting)
    except TidegateError as error:
        result = BenchResult(name=name, rows=[], samples=[], problem=str(error))
    return msgspec.structs.replace(
        result, wall_s=time.monotonic() - started_s, cpu_s=own_tree_cpu_s() - started_cpu_s
    )
