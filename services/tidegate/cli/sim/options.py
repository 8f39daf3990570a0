"""Options of ``tidegate sim``, a group for each panel of its help."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from tidegate.cli.option_groups import panel

_Loop = panel("Fleet (with --actors)")
_Sweep = panel("Sweep over fleets")
_Chaos = panel("Chaos runs (with --chaos)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """Options of all simulations."""

    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Seed (default: random, and printed).")
    ] = None
    ticks: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Ticks: of 50 virtual ms (10,000); with --chaos of 1 s (2,000)."
        ),
    ] = None
    max_lag: Annotated[
        int | None,
        typer.Option(
            "--max-lag", metavar="N", min=0, help="Staleness budget, versions (fleet: 2 rollouts per actor)."
        ),
    ] = None
    faults: Annotated[bool, typer.Option(help="Inject faults into the services.")] = True
    central_inference: Annotated[
        bool, typer.Option("--central-inference", help="Simulate the inference service as well.")
    ] = False
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """The fleet whose training loop is simulated."""

    actors: Annotated[int | None, _Loop(metavar="N", min=1, help="Actors: simulates a fleet.")] = None
    rollout: Annotated[str, _Loop(help="Rollout time: fixed:S, exp:MEAN, lognormal:MEAN:C or hist:FILE.")] = (
        "exp:1"
    )
    learn: Annotated[str, _Loop(help="Update time, in the forms of --rollout.")] = "0"
    learn_each: Annotated[
        float, _Loop(metavar="S", min=0, help="Additional seconds per trajectory of an update.")
    ] = 0.0
    mode: Annotated[
        Literal["sync", "async"], _Loop(help="sync: max_lag 0, one rollout of each actor per batch.")
    ] = "async"
    horizon: Annotated[
        float | None, _Loop(metavar="S", min=1e-9, help="Virtual seconds (default: 200 rollouts).")
    ] = None
    batch: Annotated[
        int | None, _Loop(metavar="N", min=1, help="Trajectories per update (sync: one per actor; async: 1).")
    ] = None
    admission: Annotated[bool, _Loop(help="Admission control; without it queue and lag grow.")] = True
    pacing: Annotated[bool, _Loop("--pacing", help="Wait for the oldest rollout: nothing is wasted.")] = False
    max_running: Annotated[
        int | None, _Loop(metavar="N", min=1, help="Bound on trajectories between admission and store.")
    ] = None
    max_age: Annotated[
        float, _Loop(metavar="S", min=0, help="Age budget of a trajectory, seconds since its start.")
    ] = 86_400.0
    group: Annotated[int, _Loop(metavar="N", min=1, help="Trajectories per task.")] = 1
    samples: Annotated[
        int, _Loop(metavar="N", min=1, help="Samples per trajectory: the unit of throughput.")
    ] = 1
    replicas: Annotated[int, _Loop(metavar="N", min=1, help="Data-parallel learner replicas.")] = 1
    environments: Annotated[
        int, _Loop(metavar="N", min=0, help="Environment workers; 0 scores in the actor.")
    ] = 0
    score: Annotated[str, _Loop(help="Scoring time, in the forms of --rollout.")] = "0"
    announce: Annotated[
        float, _Loop(metavar="S", min=0, help="Seconds until every actor hears of a new version.")
    ] = 0.0
    pull: Annotated[float, _Loop(metavar="S", min=0, help="Seconds to pull a version.")] = 0.0
    fan_out: Annotated[
        int, _Loop(metavar="N", min=0, help="Children of each weight relay; 0: all pull from the root.")
    ] = 0
    hop: Annotated[float, _Loop(metavar="S", min=0, help="Seconds per message between services.")] = 0.0
    from_run: Annotated[
        Path | None, _Loop(help="Take times and settings from this run folder; predicts its rate and lag.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """One setting of the fleet varied."""

    sweep: Annotated[
        str | None,
        _Sweep(
            help="actors=2..64 (doubling), =2..64:all or =2,3,5; also batch, max-lag, replicas, environments."
        ),
    ] = None
    lag_bound: Annotated[
        float | None, _Sweep(metavar="LAG", min=0, help="Report where the mean lag of async exceeds this.")
    ] = None
    html: Annotated[Path | None, _Sweep(help="Write the sweep as an HTML page with charts.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """Small fleets with random faults."""

    chaos: Annotated[
        bool, _Chaos("--chaos", help="Inject random faults into a small fleet; check every tick.")
    ] = False
    seeds: Annotated[
        str | None, _Chaos(metavar="A..B", help="One chaos run per seed, and a line that summarises them.")
    ] = None
