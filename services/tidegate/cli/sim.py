"""``tidegate sim``: the platform's own services under faults, a fleet of any size, or small fleets in storms."""

import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from tidegate.core.errors import ConfigError

if TYPE_CHECKING:
    from tidegate.fleet.plan import FleetPlan
    from tidegate.fleet.report import Mode
    from tidegate.sim.simulation import Report

SEEDS = 1_000_000
SERVICE_TICKS = 10_000
# Of the mean rollout, where no horizon is named: enough for means within a few percent.
ROLLOUTS_SIMULATED = 200
PREDICTED_ROLLOUTS = 1000

LOOP = "The loop (with --actors)"
SWEEP = "Many fleets"
STORM = "Storms (with --storm)"


def sim(
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Which run; without it a new one is drawn and named."),
    ] = None,
    ticks: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Ticks: of 50 virtual ms (10,000); with --storm, of 1 s, at most (2,000).",
        ),
    ] = None,
    max_lag: Annotated[
        int | None,
        typer.Option(
            "--max-lag",
            metavar="N",
            min=0,
            help="Staleness budget; of a fleet: by default 2 rollouts an actor.",
        ),
    ] = None,
    faults: Annotated[bool, typer.Option(help="Whether anything goes wrong among the services.")] = True,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    actors: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Simulate a fleet of so many.", rich_help_panel=LOOP),
    ] = None,
    rollout: Annotated[
        str,
        typer.Option(
            help="Seconds of a rollout: exp:MEAN, lognormal:MEAN:C, fixed:S or hist:FILE.",
            rich_help_panel=LOOP,
        ),
    ] = "exp:1",
    learn: Annotated[
        str, typer.Option(help="Seconds of an update, as --rollout.", rich_help_panel=LOOP)
    ] = "0",
    learn_each: Annotated[
        float,
        typer.Option(
            metavar="S", min=0, help="Seconds more for each trajectory in it.", rich_help_panel=LOOP
        ),
    ] = 0.0,
    mode: Annotated[
        Literal["sync", "async"],
        typer.Option(help="sync: max_lag 0, each actor's rollout in a batch.", rich_help_panel=LOOP),
    ] = "async",
    horizon: Annotated[
        float | None,
        typer.Option(
            metavar="S", min=1e-9, help="Virtual seconds (default: 200 rollouts).", rich_help_panel=LOOP
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Trajectories an update (sync: one an actor; async: 1).",
            rich_help_panel=LOOP,
        ),
    ] = None,
    admission: Annotated[
        bool, typer.Option(help="Whether the law holds; without it queue and lag grow.", rich_help_panel=LOOP)
    ] = True,
    pacing: Annotated[
        bool, typer.Option("--pacing", help="Wait for the oldest rollout: no waste.", rich_help_panel=LOOP)
    ] = False,
    max_running: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Trajectories on their way to the store.", rich_help_panel=LOOP
        ),
    ] = None,
    max_age: Annotated[
        float,
        typer.Option(
            metavar="S", min=0, help="Seconds since its start, budget of each.", rich_help_panel=LOOP
        ),
    ] = 86_400.0,
    group: Annotated[
        int, typer.Option(metavar="N", min=1, help="Trajectories a task.", rich_help_panel=LOOP)
    ] = 1,
    samples: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Samples a trajectory: what is counted.", rich_help_panel=LOOP),
    ] = 1,
    replicas: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Data-parallel replicas of the learner.", rich_help_panel=LOOP),
    ] = 1,
    environments: Annotated[
        int, typer.Option(metavar="N", min=0, help="Scoring workers; 0 scores inline.", rich_help_panel=LOOP)
    ] = 0,
    score: Annotated[str, typer.Option(help="Seconds of a score, as --rollout.", rich_help_panel=LOOP)] = "0",
    announce: Annotated[
        float,
        typer.Option(metavar="S", min=0, help="Seconds until all hear of a version.", rich_help_panel=LOOP),
    ] = 0.0,
    pull: Annotated[
        float, typer.Option(metavar="S", min=0, help="Seconds a node pulls a version.", rich_help_panel=LOOP)
    ] = 0.0,
    fan_out: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Children of a relay; 0: all pull at the root.", rich_help_panel=LOOP
        ),
    ] = 0,
    hop: Annotated[
        float,
        typer.Option(metavar="S", min=0, help="Seconds of a message between services.", rich_help_panel=LOOP),
    ] = 0.0,
    from_run: Annotated[
        Path | None,
        typer.Option(
            help="A run folder: its measured times and settings; predicts its rate and lag.",
            rich_help_panel=LOOP,
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            help="actors=2..64 (doubling), =2..64:all or =2,3,5; also batch, max-lag, replicas, environments.",
            rich_help_panel=SWEEP,
        ),
    ] = None,
    lag_bound: Annotated[
        float | None,
        typer.Option(
            metavar="LAG", min=0, help="Say where the mean lag of async passes this.", rich_help_panel=SWEEP
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the sweep as a page with plots.", rich_help_panel=SWEEP)
    ] = None,
    storm: Annotated[
        bool,
        typer.Option(
            "--storm", help="Break a small fleet at random; check each tick.", rich_help_panel=STORM
        ),
    ] = False,
    seeds: Annotated[
        str | None,
        typer.Option(help="A..B: many storms and a line about all of them.", rich_help_panel=STORM),
    ] = None,
) -> None:
    """Simulate the platform under a virtual clock. The same seed gives the same run.

    Without --actors, --from-run or --storm: the services' own code under seeded faults, invariants at every tick.
    With --actors: the whole loop as queues and times, with the real admission and staleness decisions.
    Exits 0 if every invariant held, 1 if one did not.
    """
    chosen = secrets.randbelow(SEEDS) if seed is None else seed
    if storm:
        _run_storms(chosen, seeds=seeds, ticks=ticks, json=json)
        return
    if seeds is not None:
        raise ConfigError("--seeds belongs to --storm", fix="add --storm")
    if actors is None and sweep is None and from_run is None:
        _run_services(chosen, ticks=ticks or SERVICE_TICKS, max_lag=max_lag, faults=faults, json=json)
        return
    # Only here, as with all below, as it brings the rooms that compute with it.
    from tidegate.fleet.draws import parse_duration
    from tidegate.fleet.plan import FleetPlan

    if from_run is not None:
        _predict(from_run, seed=seed or 0, horizon_s=horizon, actors=actors, json=json)
        return
    plan = FleetPlan(
        actors=actors or 1,
        rollout=parse_duration(rollout),
        learn=parse_duration(learn),
        learn_each_s=learn_each,
        max_age_s=max_age,
        max_running=max_running,
        admission=admission,
        pacing=pacing,
        group_size=group,
        samples_per_trajectory=samples,
        replicas=replicas,
        environments=environments,
        score=parse_duration(score),
        announce_s=announce,
        pull_s=pull,
        fan_out=fan_out,
        hop_s=hop,
        seed=seed or 0,
    )
    seconds = horizon or ROLLOUTS_SIMULATED * plan.rollout.mean_s
    if sweep is not None:
        _run_sweep(
            plan,
            sweep,
            horizon_s=seconds,
            batch=batch,
            max_lag=max_lag,
            bound=lag_bound,
            html=html,
            json=json,
        )
        return
    _run_fleet(plan, mode, horizon_s=seconds, batch=batch, max_lag=max_lag, json=json)


def _run_services(seed: int, *, ticks: int, max_lag: int | None, faults: bool, json: bool) -> None:
    from tidegate.sim.scenario import draw_scenario
    from tidegate.sim.simulation import simulate

    report = simulate(draw_scenario(seed, ticks=ticks, max_lag=max_lag, faults=faults))
    if json:
        _write_json(report)
    else:
        console = Console()
        console.print(render(report), highlight=False)
        if not report.passed:
            console.print("\n".join(report.story), highlight=False, markup=False)
            console.print("\n".join(report.violations), style="bold red", highlight=False, markup=False)
            console.print(f"replay with: {report.replay}", highlight=False, markup=False)
    raise typer.Exit(0 if report.passed else 1)


def _run_fleet(
    plan: "FleetPlan", mode: "Mode", *, horizon_s: float, batch: int | None, max_lag: int | None, json: bool
) -> None:
    from tidegate.cli.fleet import fleet_table
    from tidegate.fleet.modes import in_mode
    from tidegate.fleet.report import simulate_fleet

    began_s = time.process_time()
    report = simulate_fleet(in_mode(plan, mode, batch_size=batch, max_lag=max_lag), horizon_s=horizon_s)
    if json:
        _write_json(report)
    else:
        Console().print(fleet_table(report, cpu_s=time.process_time() - began_s), highlight=False)


def _run_sweep(
    plan: "FleetPlan",
    text: str,
    *,
    horizon_s: float,
    batch: int | None,
    max_lag: int | None,
    bound: float | None,
    html: Path | None,
    json: bool,
) -> None:
    from tidegate.cli.fleet import sweep_table
    from tidegate.fleet.charts import page
    from tidegate.fleet.sweep import parse_axis, run_sweep, with_setting

    axis = parse_axis(text)

    def make_plan(value: int, mode: "Mode") -> "FleetPlan":
        return with_setting(plan, axis.setting, value, mode=mode, batch_size=batch, max_lag=max_lag)

    found = run_sweep(axis, make_plan, horizon_s=horizon_s, lag_bound=bound)
    if html is not None:
        html.write_text(
            page(found, title=f"Sweep of {axis.setting}, rollouts {plan.rollout}"), encoding="utf-8"
        )
    if json:
        _write_json(found)
    else:
        Console().print(sweep_table(found), highlight=False)


def _run_storms(seed: int, *, seeds: str | None, ticks: int | None, json: bool) -> None:
    from tidegate.cli.fleet import parse_seeds, print_broken, storm_table, summarise, summary_line
    from tidegate.fleet.storm import TICKS_MAX, StormReport, draw_storm, simulate_storm

    ticks_max = ticks or TICKS_MAX
    if seeds is None:
        report = simulate_storm(draw_storm(seed, ticks_max=ticks_max))
        if json:
            _write_json(report)
        else:
            console = Console()
            console.print(storm_table(report), highlight=False)
            if not report.passed:
                print_broken(console, report)
        raise typer.Exit(0 if report.passed else 1)
    console = Console(stderr=json)
    reports = (simulate_storm(draw_storm(each, ticks_max=ticks_max)) for each in parse_seeds(seeds))
    seen: list[StormReport] = []
    for report in reports:
        seen.append(report)
        if not report.passed:
            console.print(f"seed {report.seed}: {report.violations[0]}", style="bold red", markup=False)
            console.print(f"replay with: {report.replay}", highlight=False, markup=False)
    summary = summarise(seen)
    if json:
        _write_json(summary)
    else:
        console.print(summary_line(summary), highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(1 if summary.failing else 0)


def _predict(folder: Path, *, seed: int, horizon_s: float | None, actors: int | None, json: bool) -> None:
    from tidegate.cli.prediction import prediction_table, read_measured
    from tidegate.fleet.measured import predict

    measured = read_measured(folder, actors=actors, seed=seed)
    prediction = predict(measured, horizon_s=horizon_s or PREDICTED_ROLLOUTS * measured.rollout_s)
    if json:
        _write_json(prediction)
    else:
        Console().print(prediction_table(measured, prediction), highlight=False)


def _write_json(value: msgspec.Struct) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


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
