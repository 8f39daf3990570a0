"""``tidegate sim``: the platform's own services under faults, a fleet of any size, or small fleets under chaos."""

import secrets
import time

import typer

from tidegate.cli.console import open_console
from tidegate.cli.json_output import write_json
from tidegate.cli.option_groups import grouped
from tidegate.cli.sim.options import ChaosOptions, FleetOptions, SimOptions, SweepOptions
from tidegate.core.errors import ConfigError

SEEDS = 1_000_000
SERVICE_TICKS = 10_000
# Of the mean rollout, where no horizon is named: enough for means within a few percent.
ROLLOUTS_SIMULATED = 200
PREDICTED_ROLLOUTS = 1000


@grouped
def sim(run: SimOptions, fleet: FleetOptions, sweep: SweepOptions, chaos: ChaosOptions) -> None:
    """Simulate the platform under a virtual clock. The same seed gives the same run.

    Without --actors, --from-run or --chaos: the services' own code under seeded faults, invariants at every tick.
    With --actors: the whole loop as queues and times, with the real admission and staleness decisions.
    Exits 0 if every invariant held, 1 if one did not.
    """
    seed = secrets.randbelow(SEEDS) if run.seed is None else run.seed
    if chaos.chaos:
        _run_chaos(run, seed=seed, seeds=chaos.seeds)
    elif chaos.seeds is not None:
        raise ConfigError("--seeds belongs to --chaos", fix="add --chaos")
    elif fleet.from_run is not None:
        _predict(run, fleet)
    elif sweep.sweep is not None:
        _run_sweep(run, fleet, sweep, axis_text=sweep.sweep)
    elif fleet.actors is not None:
        _run_fleet(run, fleet)
    else:
        _run_services(run, seed=seed)


# Each imports its libraries late: the help of the command needs none of them.


def _run_services(run: SimOptions, *, seed: int) -> None:
    from tidegate.cli.sim.tables import services_table
    from tidegate.sim.scenario import draw_scenario
    from tidegate.sim.simulation import simulate

    scenario = draw_scenario(
        seed,
        ticks=run.ticks or SERVICE_TICKS,
        max_lag=run.max_lag,
        faults=run.faults,
        central_inference=run.central_inference,
    )
    report = simulate(scenario)
    if run.json:
        write_json(report)
    else:
        console = open_console()
        console.print(services_table(report))
        if not report.passed:
            console.print("\n".join(report.events))
            console.print("\n".join(report.violations), style="bold red")
            console.print(f"replay with: {report.replay}")
    raise typer.Exit(0 if report.passed else 1)


def _run_fleet(run: SimOptions, options: FleetOptions) -> None:
    from tidegate.cli.sim.fleet import plan_of
    from tidegate.cli.sim.tables import fleet_table
    from tidegate.fleet.modes import in_mode
    from tidegate.fleet.report import simulate_fleet

    plan = plan_of(options, seed=run.seed or 0)
    horizon_s = options.horizon or ROLLOUTS_SIMULATED * plan.rollout.mean_s
    began_s = time.process_time()
    fleet = in_mode(plan, options.mode, batch_size=options.batch, max_lag=run.max_lag)
    report = simulate_fleet(fleet, horizon_s=horizon_s)
    if run.json:
        write_json(report)
    else:
        open_console().print(fleet_table(report, cpu_s=time.process_time() - began_s))


def _run_sweep(run: SimOptions, options: FleetOptions, sweep: SweepOptions, *, axis_text: str) -> None:
    from tidegate.cli.sim.fleet import plan_of
    from tidegate.cli.sim.tables import sweep_table
    from tidegate.fleet.plan import FleetPlan
    from tidegate.fleet.report import Mode
    from tidegate.fleet.sweep import parse_axis, run_sweep, with_setting

    plan, axis = plan_of(options, seed=run.seed or 0), parse_axis(axis_text)
    horizon_s = options.horizon or ROLLOUTS_SIMULATED * plan.rollout.mean_s

    def make_plan(value: int, mode: Mode) -> FleetPlan:
        return with_setting(
            plan, axis.setting, value, mode=mode, batch_size=options.batch, max_lag=run.max_lag
        )

    found = run_sweep(axis, make_plan, horizon_s=horizon_s, lag_bound=sweep.lag_bound)
    if sweep.html is not None:
        from tidegate.cli.sim.sweep_page import render_sweep  # matplotlib: only for a page

        title = f"Sweep of {axis.setting}, rollouts {plan.rollout}"
        sweep.html.write_text(render_sweep(found, title=title), encoding="utf-8")
    if run.json:
        write_json(found)
    else:
        open_console().print(sweep_table(found))


def _run_chaos(run: SimOptions, *, seed: int, seeds: str | None) -> None:
    from tidegate.cli.sim.tables import chaos_table, print_failure
    from tidegate.fleet.chaos import TICKS_MAX, draw_chaos_run, simulate_chaos

    if seeds is not None:
        _run_many(run, seeds=seeds)
        return
    report = simulate_chaos(draw_chaos_run(seed, ticks_max=run.ticks or TICKS_MAX))
    if run.json:
        write_json(report)
    else:
        console = open_console()
        console.print(chaos_table(report))
        if not report.passed:
            print_failure(console, report)
    raise typer.Exit(0 if report.passed else 1)


def _run_many(run: SimOptions, *, seeds: str) -> None:
    from tidegate.cli.sim.tables import parse_seeds, summarise, summary_line
    from tidegate.fleet.chaos import TICKS_MAX, ChaosReport, draw_chaos_run, simulate_chaos

    console = open_console(stderr=run.json)
    reports: list[ChaosReport] = []
    for seed in parse_seeds(seeds):
        report = simulate_chaos(draw_chaos_run(seed, ticks_max=run.ticks or TICKS_MAX))
        reports.append(report)
        if not report.passed:
            console.print(f"seed {report.seed}: {report.violations[0]}", style="bold red")
            console.print(f"replay with: {report.replay}")
    summary = summarise(reports)
    if run.json:
        write_json(summary)
    else:
        console.print(summary_line(summary), soft_wrap=True)
    raise typer.Exit(1 if summary.failing else 0)


def _predict(run: SimOptions, options: FleetOptions) -> None:
    from tidegate.cli.sim.prediction import prediction_table, read_measured
    from tidegate.fleet.measured import predict

    assert options.from_run is not None, "the caller checked it"
    measured = read_measured(options.from_run, actors=options.actors, seed=run.seed or 0)
    prediction = predict(measured, horizon_s=options.horizon or PREDICTED_ROLLOUTS * measured.rollout_s)
    if run.json:
        write_json(prediction)
    else:
        open_console().print(prediction_table(measured, prediction))
