"""``tidegate sim``."""

import secrets
import sys
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from tidegate.sim.simulation import Report

SEEDS = 1_000_000


def sim(
    seed: Annotated[
        int | None, typer.Option(min=0, help="Which run; without it a new one is drawn and named.")
    ] = None,
    ticks: Annotated[int, typer.Option(min=1, help="Length, in ticks of 50 virtual milliseconds.")] = 10_000,
    max_lag: Annotated[
        int | None, typer.Option("--max-lag", min=0, help="Staleness budget, instead of the seed's own.")
    ] = None,
    faults: Annotated[bool, typer.Option(help="Whether anything goes wrong.")] = True,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Simulate the whole platform under a virtual clock: the services' own code, seeded faults, invariants every tick.

    The same seed gives the same run. Exits 0 if every invariant held, 1 if one did not.
    """
    # Only here, as it brings the rooms that compute with it.
    from tidegate.sim.scenario import draw_scenario
    from tidegate.sim.simulation import simulate

    chosen = secrets.randbelow(SEEDS) if seed is None else seed
    report = simulate(draw_scenario(chosen, ticks=ticks, max_lag=max_lag, faults=faults))
    if json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    else:
        console = Console()
        console.print(render(report), highlight=False)
        if not report.passed:
            console.print("\n".join(report.story), highlight=False, markup=False)
            console.print("\n".join(report.violations), style="bold red", highlight=False, markup=False)
            console.print(f"replay with: {report.replay}", highlight=False, markup=False)
    raise typer.Exit(0 if report.passed else 1)


def render(report: "Report") -> Table:
    """A run in a few lines."""
    table = Table(
        title=f"simulation of seed {report.seed}",
        title_justify="left",
        box=None,
        show_header=False,
        padding=(0, 2),
    )
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="bright_black")
    lags = ", ".join(f"{lag}: {count:,}" for lag, count in report.trained_by_lag.items())
    drops = ", ".join(f"{reason} {count:,}" for reason, count in report.dropped.items())
    table.add_row("ticks", f"{report.ticks:,}", f"max_lag {report.max_lag}")
    table.add_row("faults", f"{report.faults:,}", f"{report.starts:,} processes were started")
    table.add_row("messages", f"{report.messages:,}", f"{report.messages_lost:,} lost on their way")
    table.add_row(
        "redelivered", f"{report.redelivered:,}", f"full streams refused {report.refused_by_full_streams:,}"
    )
    table.add_row("updates", f"{report.updates:,}", f"by lag {lags}")
    table.add_row("admitted", f"{report.admitted:,}", f"at most {report.max_in_flight:,} in flight")
    table.add_row("  trained", f"{report.trained:,}", f"{report.revived:,} revived after restores")
    table.add_row("  dropped", f"{sum(report.dropped.values()):,}", drops)
    if report.recovery_s is not None:
        table.add_row("recovery", f"{report.recovery_s:.1f} s", "from the last fault to the next update")
    verdict = "[bold green]every invariant held[/]" if report.passed else "[bold red]VIOLATED[/]"
    table.add_row(verdict, "", f"digest {report.digest}")
    return table
