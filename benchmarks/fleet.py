"""Hundreds of actors against the services of one machine: what they do a second, where it ends, and on what CPU.

A run of its own services and learner, and beside it a process with that many actors (``benchmarks.light_actors``): each
has the actor's own code, connections and server, and its rollouts take time but no work. The peer is `tidegate sim`,
which knows nothing of CPUs: with the same rollouts, the learner's measured times and no cost of messages.
"""

import statistics
import sys
import time
from pathlib import Path

import msgspec

from benchmarks.process_tree import process_cpu_s
from benchmarks.program import Program
from benchmarks.results import BenchResult, Sample, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.steps_file import StepPoint, StepsFile
from benchmarks.training_run import (
    STEPS_FILE,
    THREADS,
    cpu_s_by_process,
    remove_folder,
    sleep_until,
    up_command,
    wait_for_training,
)
from tidegate.core.distributions import parse_distribution
from tidegate.fleet.plan import FleetPlan
from tidegate.fleet.report import simulate_fleet

# Small segments: their content is not what is measured.
NUM_ENVS, UNROLL_LENGTH = 1, 16
# Twice as many in flight as actors, so that none of them waits for admission.
IN_FLIGHT_OF_ACTORS = 2.0
WARM_UP_S, WARM_UP_EACH_S = 10.0, 0.1
WINDOW_S, QUICK_WINDOW_S = 30.0, 8.0
LIGHT_ACTORS = "light actors"


class Fleet(msgspec.Struct, frozen=True):
    """So many actors beside the run's own one; ``rollout``: as `tidegate sim` has it; ``batch_size``: trajectories."""

    actors: int
    rollout: str
    batch_size: int = 16

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.actors} actors, {self.rollout}, batches of {self.batch_size}"


FLEETS = (
    Fleet(50, "lognormal:1:0.5"),
    Fleet(100, "lognormal:1:0.5"),
    Fleet(200, "lognormal:4:0.5"),
    Fleet(200, "lognormal:2:0.5"),
    Fleet(200, "lognormal:1:0.5"),
    Fleet(200, "lognormal:0.5:0.5"),
    Fleet(200, "lognormal:0.25:0.5"),
    # Versions cost each actor an announcement: fewer of them leave more to the trajectories.
    Fleet(200, "lognormal:0.25:0.5", batch_size=128),
)


class Measured(msgspec.Struct, frozen=True):
    """What a fleet did in the window. ``cores``: of each process; ``simulated``: trajectories a second."""

    fleet: Fleet
    trajectories: int
    updates: int
    wall_s: float
    cores: dict[str, float]
    lag_mean: float
    lag_max: int
    simulated: float

    @property
    def per_s(self) -> float:
        """Trajectories trained a second."""
        return self.trajectories / self.wall_s


def run(setting: BenchSetting) -> BenchResult:
    """One fleet after the other.

    Raises:
        UnavailableError: a platform ended early.
    """
    done = [
        _measure(setting, fleet, repetition)
        for repetition in range(setting.repeat(1))
        for fleet in (FLEETS[:1] if setting.quick else FLEETS)
    ]
    fleets = list(dict.fromkeys(each.fleet for each in done))
    return BenchResult(
        name="fleet",
        rows=[
            row(
                fleet.name,
                "trajectories/s",
                [each.per_s for each in done if each.fleet == fleet],
                [each.simulated for each in done if each.fleet == fleet],
            )
            for fleet in fleets
        ],
        samples=[_sample(each, done) for each in done],
        notes=[
            "the peer is `tidegate sim`, which knows nothing of CPUs",
            f"segments of {UNROLL_LENGTH} steps of {NUM_ENVS} environment",
        ],
        table=markdown(done),
    )


def markdown(done: list[Measured]) -> str:
    """A table with the cores of each process."""
    names = sorted({name for each in done for name, cores in each.cores.items() if cores >= 0.005})
    lines = [
        f"| fleet | trajectories/s | simulated | ratio | lag mean, max | {' | '.join(names)} | all cores |",
        "|---" * (len(names) + 6) + "|",
    ]
    for each in done:
        cores = " | ".join(f"{each.cores.get(name, 0.0):.2f}" for name in names)
        lines.append(
            f"| {each.fleet.name} | {each.per_s:.1f} | {each.simulated:.1f} | {each.per_s / each.simulated:.2f}"
            f" | {each.lag_mean:.1f}, {each.lag_max} | {cores} | {sum(each.cores.values()):.2f} |"
        )
    return "\n".join(lines) + "\n"


def _measure(setting: BenchSetting, fleet: Fleet, repetition: int) -> Measured:
    folder = (
        setting.folder
        / f"fleet-{fleet.actors}-{fleet.rollout.replace(':', '-')}-{fleet.batch_size}-{repetition}"
    )
    max_lag = max(2, round(IN_FLIGHT_OF_ACTORS * fleet.actors / fleet.batch_size))
    command = up_command(
        setting.run_file,
        folder=folder,
        overrides=[
            f"batch_size={fleet.batch_size}",
            f"staleness.max_lag={max_lag}",
            f"workload.num_envs={NUM_ENVS}",
            f"workload.unroll_length={UNROLL_LENGTH}",
            f"workload.latency={fleet.rollout}",
            "actor.replicas=1",
        ],
    )
    light = [sys.executable, "-m", "benchmarks.light_actors", str(folder), str(fleet.actors)]
    steps = StepsFile(folder / STEPS_FILE)
    window_s = QUICK_WINDOW_S if setting.quick else WINDOW_S
    with Program(command, log=folder.with_name(f"{folder.name}.log"), environment=THREADS) as program:
        wait_for_training(program, folder, after_s=0.0)
        with Program(light, log=folder.with_name(f"{folder.name}-actors.log"), environment=THREADS) as actors:
            sleep_until(program, time.time() + WARM_UP_S + WARM_UP_EACH_S * fleet.actors)
            from_s, before = time.time(), _spent_s(program, folder, actors)
            sleep_until(program, from_s + window_s)
            to_s, after = time.time(), _spent_s(program, folder, actors)
            actors.require_alive()
        points = [point for point in steps.read() if from_s < point.at_s <= to_s]
    remove_folder(folder)
    found = Measured(
        fleet=fleet,
        trajectories=sum(point.samples for point in points),
        updates=len(points),
        wall_s=to_s - from_s,
        cores={name: (after[name] - before[name]) / (to_s - from_s) for name in before if name in after},
        lag_mean=statistics.fmean(point.lag_mean for point in points),
        lag_max=max(point.lag_max for point in points),
        simulated=_simulated(fleet, max_lag, points),
    )
    print_progress(f"fleet {fleet.name}: {found.per_s:.1f} trajectories/s, simulated {found.simulated:.1f}")
    return found


def _spent_s(program: Program, folder: Path, actors: Program) -> dict[str, float]:
    """CPU seconds of each process so far."""
    return {**cpu_s_by_process(program, folder), LIGHT_ACTORS: process_cpu_s(actors.pid) or 0.0}


def _simulated(fleet: Fleet, max_lag: int, points: list[StepPoint]) -> float:
    """Trajectories a second of the same fleet, with the run's own actor, in virtual time."""
    learn = parse_distribution(f"fixed:{statistics.fmean(point.train_s for point in points):.6f}")
    plan = FleetPlan(
        actors=fleet.actors + 1,
        rollout=parse_distribution(fleet.rollout),
        learn=learn,
        batch_size=fleet.batch_size,
        max_lag=max_lag,
        max_running=(max_lag + 1) * fleet.batch_size,
    )
    return simulate_fleet(plan, horizon_s=100.0 * plan.rollout.mean_s).samples_per_s


def _sample(each: Measured, done: list[Measured]) -> Sample:
    return Sample(
        side="tidegate",
        label=each.fleet.name,
        repetition=[other for other in done if other.fleet == each.fleet].index(each),
        work=each.trajectories,
        unit="trajectories",
        wall_s=each.wall_s,
        cpu_s=sum(each.cores.values()) * each.wall_s,
        details={
            "updates": each.updates,
            "lag_mean": each.lag_mean,
            "lag_max": each.lag_max,
            "simulated_per_s": each.simulated,
            **{f"cores.{name}": cores for name, cores in each.cores.items()},
        },
    )
