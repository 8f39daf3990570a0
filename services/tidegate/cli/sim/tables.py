"""The output of ``tidegate sim``, for each kind of simulation."""

from collections.abc import Iterable

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegate.core.errors import ConfigError
from tidegate.fleet.chaos import ChaosReport
from tidegate.fleet.report import FleetReport
from tidegate.fleet.sweep import FleetSweep, crossovers
from tidegate.sim.simulation import Report


class ChaosSummary(msgspec.Struct, frozen=True):
    """Many chaos runs in one object. ``failing`` names the seeds of runs that broke a guarantee."""

    seeds: int
    ticks: int
    updates: int
    faults: int
    failing: list[int]
    recoveries_judged: int
    recovery_ratio_min: float | None
    lag_above_budget_max: int
    gap_of_promise_max: float
    openings_per_tick_max: int
    reports_refused: int


def parse_seeds(text: str) -> range:
    """Read ``A..B``, both included.

    Raises:
        ConfigError: it is no such range.
    """
    first, separator, last = text.partition("..")
    if not (separator and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise ConfigError(f"{text!r} is no range of seeds", fix="write --seeds 0..999")
    return range(int(first), int(last) + 1)


def summarise(reports: Iterable[ChaosReport]) -> ChaosSummary:
    """The worst values over all chaos runs."""
    seen = list(reports)
    ratios = [report.recovery_ratio for report in seen if report.recovery_ratio is not None]
    return ChaosSummary(
        seeds=len(seen),
        ticks=sum(report.ticks for report in seen),
        updates=sum(report.updates for report in seen),
        faults=sum(report.faults for report in seen),
        failing=[report.seed for report in seen if not report.passed],
        recoveries_judged=len(ratios),
        recovery_ratio_min=min(ratios, default=None),
        lag_above_budget_max=max((report.lag_max - report.max_lag for report in seen), default=0),
        gap_of_promise_max=max((report.longest_gap_s / report.progress_s for report in seen), default=0.0),
        openings_per_tick_max=max((report.openings_per_tick_max for report in seen), default=0),
        reports_refused=sum(report.reports_refused for report in seen),
    )


def summary_line(summary: ChaosSummary) -> str:
    """One line for many chaos runs."""
    verdict = f"{len(summary.failing)} FAILED" if summary.failing else "every guarantee held"
    ratio = "-" if summary.recovery_ratio_min is None else f"{summary.recovery_ratio_min:.3f}"
    return (
        f"{summary.seeds:,} chaos runs, {summary.ticks:,} ticks, {summary.updates:,} updates,"
        f" {summary.faults:,} faults:"
        f" {verdict}; rate after the last fault at least {ratio} of before ({summary.recoveries_judged:,} measured),"
        f" longest gap {summary.gap_of_promise_max:.2f} of the guaranteed maximum"
    )


def chaos_table(report: ChaosReport) -> Table:
    """One chaos run in a few lines."""
    table = _table(f"chaos run of seed {report.seed}")
    drops = ", ".join(f"{reason} {count:,}" for reason, count in report.dropped.items())
    ratio = "not measured" if report.recovery_ratio is None else f"{report.recovery_ratio:.3f}"
    table.add_row("ticks", f"{report.ticks:,}", f"{report.actors} actors, max_lag {report.max_lag}")
    table.add_row("faults", f"{report.faults:,}", f"{report.reports_refused:,} reports refused")
    table.add_row(
        "updates", f"{report.updates:,}", f"batch {report.batch_size}, lag at most {report.lag_max}"
    )
    table.add_row(
        "admitted", f"{report.admitted:,}", f"trained {report.trained:,}; dropped {drops or 'none'}"
    )
    table.add_row("longest gap", f"{report.longest_gap_s:.0f} s", f"guaranteed: {report.progress_s:.0f} s")
    table.add_row("recovery", ratio, f"{report.rate_after:.3f} after, {report.rate_before:.3f}/s before")
    table.add_row(_verdict("every guarantee held", "BROKEN", passed=report.passed), "", "")
    return table


def print_failure(console: Console, report: ChaosReport) -> None:
    """The events before a violation, the violation, and the command that replays it."""
    console.print("\n".join(report.events), highlight=False, markup=False)
    console.print("\n".join(report.violations), style="bold red", highlight=False, markup=False)
    console.print(f"replay with: {report.replay}", highlight=False, markup=False)


def fleet_table(report: FleetReport, *, cpu_s: float) -> Table:
    """One fleet in a few lines; ``cpu_s``: CPU seconds of the simulation."""
    table = _table(f"{report.actors:,} actors, {report.mode}, {report.horizon_s:g} virtual seconds")
    law = "no admission" if not report.admission else f"max_lag {report.max_lag}"
    table.add_row("samples", f"{report.samples:,}", f"{report.samples_per_s:,.2f} a second")
    table.add_row("updates", f"{report.updates:,}", f"batch {report.batch_size:,}, {law}")
    table.add_row("lag", f"{report.lag_mean:.2f}", f"95 % up to {report.lag_p95}, at most {report.lag_max}")
    table.add_row(
        "idle",
        f"{report.actor_idle_ratio:.1%}",
        f"of the actors' time, {report.learner_idle_ratio:.1%} of the learner's",
    )
    table.add_row(
        "queue",
        f"{report.queue:,}",
        f"mean {report.queue_mean:,.1f}, at most {report.queue_max:,}; its newest is"
        f" {report.newest_lag:,.1f} updates behind",
    )
    drops = ", ".join(f"{reason} {count:,}" for reason, count in report.dropped.items())
    table.add_row("waste", f"{report.waste_ratio:.2%}", drops)
    parts = report.round
    table.add_row(
        "round",
        f"{parts.total_s:.4g} s",
        f"rollout {parts.rollout_s:.4g}, stragglers {parts.straggler_wait_s:.4g},"
        f" learner {parts.learner_stall_s:.4g}, weights {parts.weights_wait_s:.4g}",
    )
    table.add_row(
        "simulated", f"{cpu_s:.1f} s", f"of CPU for {report.events:,} events ({report.events / cpu_s:,.0f}/s)"
    )
    return table


def sweep_table(sweep: FleetSweep) -> Table:
    """A line for each point, and the crossovers below."""
    table = Table(title=f"sweep of {sweep.setting}", title_justify="left", box=None, padding=(0, 1))
    for name in (sweep.setting, "sync/s", "straggle s", "stall s", "async/s", "lag", "p95", "max", "waste"):
        table.add_column(name, justify="right", no_wrap=True)
    for point in sweep.points:
        sync, asynchronous = point.sync, point.asynchronous
        table.add_row(
            f"{point.value:,}",
            f"{sync.samples_per_s:,.1f}",
            f"{sync.round.straggler_wait_s:.3g}",
            f"{sync.round.learner_stall_s:.3g}",
            f"{asynchronous.samples_per_s:,.1f}",
            f"{asynchronous.lag_mean:.2f}",
            f"{asynchronous.lag_p95}",
            f"{asynchronous.lag_max}",
            f"{asynchronous.waste_ratio:.1%}",
        )
    table.caption = "\n".join(crossovers(sweep))
    table.caption_justify = "left"
    return table


def services_table(report: Report) -> Table:
    """A simulated run of the services in a few lines."""
    table = _table(f"simulation of seed {report.seed}")
    lags = ", ".join(f"{lag}: {count:,}" for lag, count in report.trained_by_lag.items())
    drops = ", ".join(f"{reason} {count:,}" for reason, count in report.dropped.items())
    table.add_row("ticks", f"{report.ticks:,}", f"max_lag {report.max_lag}")
    table.add_row("faults", f"{report.faults:,}", f"{report.starts:,} process starts")
    table.add_row("messages", f"{report.messages:,}", f"{report.messages_lost:,} lost in transit")
    table.add_row(
        "redelivered",
        f"{report.redelivered:,}",
        f"{report.refused_by_full_streams:,} refused by full streams",
    )
    table.add_row("updates", f"{report.updates:,}", f"by lag {lags}")
    table.add_row("admitted", f"{report.admitted:,}", f"at most {report.max_in_flight:,} in flight")
    table.add_row("  trained", f"{report.trained:,}", f"{report.revived:,} revived after restores")
    table.add_row("  dropped", f"{sum(report.dropped.values()):,}", drops)
    if report.recovery_s is not None:
        table.add_row("recovery", f"{report.recovery_s:.1f} s", "from the last fault to the next update")
    verdict = _verdict("every invariant held", "VIOLATED", passed=report.passed)
    table.add_row(verdict, "", f"digest {report.digest}")
    return table


def _verdict(good: str, bad: str, *, passed: bool) -> Text:
    return Text(good, style="bold green") if passed else Text(bad, style="bold red")


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="bright_black")
    return table
