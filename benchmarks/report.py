"""The benches as tables for a terminal, and as one JSON file that keeps every raw number."""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.machine import Machine
from benchmarks.results import BenchResult, Goal, Row, Sample, Spread

FORMAT = 1


class BenchReport(msgspec.Struct, frozen=True):
    """Everything of one round. ``load_at_end`` beside the machine's ``load_at_start`` shows how idle it was."""

    format: int
    started_at_s: float
    machine: Machine
    load_at_end: tuple[float, float, float]
    quick: bool
    run_file: str
    benches: list[BenchResult]


def write_report(path: Path, report: BenchReport) -> None:
    """Keep it as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def print_machine(console: Console, machine: Machine, *, quick: bool) -> None:
    """On what, and how busy it was."""
    load = ", ".join(f"{value:.1f}" for value in machine.load_at_start)
    console.print(
        f"{machine.processor or machine.system}, {machine.cores} cores, load at start {load}", style="dim"
    )
    if machine.load_at_start[0] > machine.cores / 2:
        console.print(
            "This machine is busy with something else: trust ratios and CPU-seconds more than seconds.",
            style="yellow",
        )
    if quick:
        console.print("One short repetition each: good to see that it works, not to quote.", style="yellow")


def print_result(console: Console, result: BenchResult, *, summary: str) -> None:
    """One bench: its figures, its raw measurements, its notes."""
    console.print()
    console.print(Text.assemble((result.name, "bold"), f"  {summary}"))
    if result.rows:
        console.print(rows_table(result.rows))
    if result.samples:
        console.print(samples_table(result.samples))
    for note in result.notes:
        console.print(note, style="dim", highlight=False)
    if result.table:
        console.print(result.table, highlight=False, markup=False)
    if result.problem:
        console.print(f"stopped: {result.problem}", style="bold red", highlight=False, markup=False)
    console.print(
        f"took {result.wall_s:.0f} s and {result.cpu_s:.0f} CPU-s of all processes",
        style="dim",
        highlight=False,
    )


def rows_table(rows: Sequence[Row]) -> Table:
    """Median (least to largest) of each side, the ratio of repetitions measured beside each other, and the goal."""
    table = Table(box=None, padding=(0, 2), show_edge=False, header_style="dim")
    table.add_column("figure")
    for column in ("tidegate", "peer", "ratio"):
        table.add_column(column, justify="right")
    table.add_column("unit", style="dim")
    table.add_column("goal")
    for row in rows:
        table.add_row(
            row.name,
            *(spread_text(each) for each in (row.tidegate, row.peer, row.ratio)),
            row.unit,
            verdict(row),
        )
    return table


def samples_table(samples: Sequence[Sample]) -> Table:
    """The raw numbers: what was done in which time."""
    table = Table(box=None, padding=(0, 2), show_edge=False, header_style="dim", style="dim")
    table.add_column("measured")
    table.add_column("side")
    for column in ("#", "work", "wall s", "CPU-s", "a second", "a CPU-second", "others' cores"):
        table.add_column(column, justify="right")
    for sample in samples:
        table.add_row(
            sample.label,
            sample.side,
            str(sample.repetition + 1),
            f"{number(sample.work)} {sample.unit}",
            f"{sample.wall_s:.2f}",
            f"{sample.cpu_s:.2f}",
            number(sample.per_s),
            number(sample.per_cpu_s),
            "" if sample.others_cores is None else f"{sample.others_cores:.1f}",
        )
    return table


def spread_text(spread: Spread | None) -> str:
    """``median (least–largest)``."""
    if spread is None:
        return ""
    if len(spread.values) == 1:
        return number(spread.median)
    return f"{number(spread.median)} ({number(spread.min)}–{number(spread.max)})"


def verdict(row: Row) -> Text:
    """The goal and whether it was met, in words."""
    if row.goal is None:
        return Text("")
    words = {True: ("met", "green"), False: ("MISSED", "bold red"), None: ("not measured", "yellow")}
    word, style = words[row.met]
    return Text.assemble(f"{goal_text(row.goal)} ", (word, style))


def goal_text(goal: Goal) -> str:
    """``ratio ≥ 0.7``."""
    sign = "≥" if goal.direction == "at_least" else "≤"
    of = "ratio " if goal.of == "ratio" else ""
    return f"{of}{sign} {number(goal.bound)}{' each' if goal.every else ''}"


def number(value: float) -> str:
    """Three digits that matter, or all of a large number."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.3g}"


def default_path(folder: Path, *, started_at_s: float) -> Path:
    """A JSON of its own for every round."""
    return folder / f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(started_at_s))}.json"
