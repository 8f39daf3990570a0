"""CartPole end to end: environment steps a CPU-second of all processes, beside the same algorithm without services.

The peer (``peers.plain_cartpole``) is the same engine, network, update, batch and staleness in one learner process and
two actor processes with a pipe between them. What the platform does beyond that (a broker, a ledger on disk, admission,
statistics, a supervisor) is what the ratio prices. Most of it is paid for each version, so it is measured a second time
with two updates a version, which are as far behind their data as the run file's.
"""

import sys
from pathlib import Path

from benchmarks.results import BenchResult, Goal, Row, Sample, Side, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.training_run import Length, TrainingRun, measure_training, remove_folder, up_command

REPETITIONS = 5
TARGET_RETURN = 475.0
WARM_UP_S = 4.0
WINDOW_S = 20.0
QUICK_WARM_UP_S = 2.0
QUICK_WINDOW_S = 6.0
# Of issue 16.
RATIO_MIN = 0.85
STEPS_PER_CPU_S_MIN = 32_000.0
STEPS_TO_TARGET_MAX = 100_000.0
# With long segments, which need more.
STEPS_TO_TARGET_MAX_LONG = 120_000.0
# What differs from the run file, by label.
TWO_UPDATES = ("batch_size=2", "learner.updates_per_version=2", "staleness.max_lag=1")
# Of two segments a version: what a version and a message cost is shared by two and a half times as many steps. Gradient
# steps have about as many steps each as in the run file, and a larger rate makes up for fewer of them.
LONG_SEGMENTS = (
    *TWO_UPDATES,
    "workload.unroll_length=320",
    "learner.actor_critic.minibatches=20",
    "learner.actor_critic.anneal_updates=20",
    "learner.actor_critic.learning_rate=0.003",
)
LONG = "segments of 320 steps"
CASES: dict[str, tuple[str, ...]] = {
    "": (),
    "two updates a version": TWO_UPDATES,
    LONG: LONG_SEGMENTS,
    f"{LONG}, cores": (
        *LONG_SEGMENTS,
        "cores={learner: [0], others: [1]}",
        "telemetry.stats_period_s=1",
    ),
}


def run(setting: BenchSetting) -> BenchResult:
    """Platform and peer in turns.

    Raises:
        UnavailableError: one of them ended, or made no gradient.
    """
    runs: dict[str, dict[Side, list[TrainingRun]]] = {case: {"tidegate": [], "peer": []} for case in CASES}
    samples: list[Sample] = []
    for repetition in range(setting.repeat(REPETITIONS)):
        for case in CASES:
            for side in alternating(repetition):
                done = _measure(setting, side, repetition, case)
                runs[case][side].append(done)
                samples += samples_of(done, side=side, repetition=repetition, label=case)
                rate = f"{done.steady.steps_per_cpu_s:,.0f} steps a CPU-second"
                print_progress(f"cartpole {case} {side} {repetition + 1}: {rate}")
    return BenchResult(
        name="cartpole",
        rows=[each for case, sides in runs.items() for each in _rows(case, sides["tidegate"], sides["peer"])],
        samples=samples,
        notes=[
            note
            for case, sides in runs.items()
            for note in (
                *_unreached(sides["tidegate"], f"tidegate {case}"),
                *_unreached(sides["peer"], f"peer {case}"),
                f"{case} tidegate: {cost_by_process(sides['tidegate'])}",
                f"{case} peer: {cost_by_process(sides['peer'])}",
            )
        ],
    )


def _rows(case: str, ours: list[TrainingRun], peer: list[TrainingRun]) -> list[Row]:
    suffix = f", {case}" if case else ""
    steps_max = STEPS_TO_TARGET_MAX_LONG if case.startswith(LONG) else STEPS_TO_TARGET_MAX
    return [
        row(
            f"steps a CPU-second, steady{suffix}",
            "steps/CPU-s",
            [each.steady.steps_per_cpu_s for each in ours],
            [each.steady.steps_per_cpu_s for each in peer],
            goal=Goal(RATIO_MIN, "at_least", "ratio"),
        ),
        row(
            f"steps a CPU-second, steady{suffix}",
            "steps/CPU-s",
            [each.steady.steps_per_cpu_s for each in ours],
            goal=Goal(STEPS_PER_CPU_S_MIN, "at_least", "figure"),
        ),
        row(
            f"steps a CPU-second, with start-up{suffix}",
            "steps/CPU-s",
            [each.whole.steps_per_cpu_s for each in ours],
            [each.whole.steps_per_cpu_s for each in peer],
        ),
        row(
            f"steps a second, steady{suffix}",
            "steps/s",
            [each.steady.steps_per_s for each in ours],
            [each.steady.steps_per_s for each in peer],
        ),
        row(
            f"steps to a mean return of {TARGET_RETURN:g}{suffix}",
            "steps",
            _steps_to_target(ours),
            goal=Goal(steps_max, "at_most", "figure"),
        ),
        row(f"steps to {TARGET_RETURN:g}, the peer{suffix}", "steps", _steps_to_target(peer)),
        row(
            f"time to it, from `up`{suffix}",
            "s",
            [s for each in ours if (s := each.reached_after_s) is not None],
        ),
        row(
            f"mean lag{suffix}",
            "versions",
            [each.lag_mean for each in ours],
            [each.lag_mean for each in peer],
        ),
        row(
            f"largest lag{suffix}",
            "versions",
            [each.lag_max for each in ours],
            [each.lag_max for each in peer],
        ),
    ]


def alternating(repetition: int) -> tuple[Side, Side]:
    """The order alternates, so that a machine that warms up or slows down favours neither side."""
    return ("tidegate", "peer") if repetition % 2 == 0 else ("peer", "tidegate")


def lengths(setting: BenchSetting, *, target_return: float | None = None) -> Length:
    """How long to measure one run."""
    if setting.quick:
        return Length(QUICK_WARM_UP_S, QUICK_WINDOW_S, target_return, target_timeout_s=60.0)
    return Length(WARM_UP_S, WINDOW_S, target_return)


def _measure(setting: BenchSetting, side: Side, repetition: int, case: str) -> TrainingRun:
    folder = setting.folder / f"cartpole-{side}-{repetition}"
    overrides = [f"seed={repetition + 1}", *CASES[case]]
    command = (
        up_command(setting.run_file, folder=folder, overrides=overrides)
        if side == "tidegate"
        else peer_command(setting.run_file, folder=folder, overrides=overrides)
    )
    done = measure_training(command, folder=folder, length=lengths(setting, target_return=TARGET_RETURN))
    remove_folder(folder)
    return done


def peer_command(run_file: Path, *, folder: Path, overrides: list[str]) -> list[str]:
    """The peer's program, on the same run file."""
    command = [sys.executable, "-m", "benchmarks.peers.plain_cartpole", str(run_file), str(folder)]
    return [*command, *overrides]


def samples_of(done: TrainingRun, *, side: Side, repetition: int, label: str = "") -> list[Sample]:
    """The raw numbers of one run."""
    prefix = f"{label} " if label else ""
    return [
        Sample(
            side=side,
            label=f"{prefix}{name}",
            repetition=repetition,
            work=window.steps,
            unit="steps",
            wall_s=window.wall_s,
            cpu_s=window.cpu_s,
            others_cores=window.others_cores,
            details={
                "updates": window.updates,
                "first_gradient_s": done.first_gradient_s,
                "lag_mean": done.lag_mean,
                "lag_max": done.lag_max,
                **({"steps_to_target": done.reached.env_steps} if done.reached is not None else {}),
                **{f"cpu_s_{process}": cpu_s for process, cpu_s in window.cpu_s_by_process.items()},
            },
        )
        for name, window in (("steady", done.steady), ("with start-up", done.whole))
    ]


def _steps_to_target(runs: list[TrainingRun]) -> list[float]:
    return [each.reached.env_steps for each in runs if each.reached is not None]


def _unreached(runs: list[TrainingRun], side: str) -> list[str]:
    missed = sum(each.reached is None for each in runs)
    return (
        [f"{missed} of {len(runs)} runs of {side} did not reach {TARGET_RETURN:g} in time"] if missed else []
    )


def cost_by_process(runs: list[TrainingRun]) -> str:
    """CPU milliseconds of each process for one learner step, in steady state, largest first."""
    updates = sum(each.steady.updates for each in runs)
    if not updates:
        return "no update in the window"
    totals: dict[str, float] = {}
    for each in runs:
        for name, cpu_s in each.steady.cpu_s_by_process.items():
            totals[name] = totals.get(name, 0.0) + cpu_s
    ordered = sorted(totals.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {1e3 * cpu_s / updates:.1f}" for name, cpu_s in ordered)
    return f"CPU-ms a learner step: {parts}"
