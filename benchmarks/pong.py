"""Pong from images: steps a CPU-second of all processes with one and two actors, and where the CPU goes.

Beside it the least that any arrangement of processes can take: environment, inference, recording and training, each
measured by itself in one process (``peers.segment_parts``). What the platform needs beyond is transport: messages,
ledger, statistics, weights, admission, and what processes that share two cores take from each other.
"""

from pathlib import Path

import msgspec

from benchmarks.cartpole import cost_by_process, samples_of
from benchmarks.measured_apart import measured_apart
from benchmarks.peers.segment_parts import Parts
from benchmarks.results import BenchResult, Goal, Row, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.training_run import Length, TrainingRun, measure_training, remove_folder, up_command

RUN_FILE = Path("runs") / "pong.yaml"
REPETITIONS = 2
LENGTH = Length(warm_up_s=8.0, window_s=40.0)
LENGTH_QUICK = Length(warm_up_s=4.0, window_s=10.0)
PARTS_TIMEOUT_S = 300.0
# Of issue 16.
STEPS_PER_CPU_S_MIN = 750.0
INPUT_WAIT_SHARE_MAX = 0.02
# What differs from the run file, by label. One pass over images of the usual size is what others' figures are of.
CASES: dict[str, tuple[str, ...]] = {
    "the run file": (),
    "84 x 84, one pass": (
        "workload.env_kwargs.img_height=84",
        "workload.env_kwargs.img_width=84",
        "learner.actor_critic.epochs=1",
    ),
}
ACTORS = (1, 2)


class PongRun(msgspec.Struct, frozen=True):
    """One run and, of the same repetition, what its parts cost by themselves."""

    done: TrainingRun
    parts: Parts

    @property
    def input_wait_share(self) -> float:
        """Share of the learner's time in which it waited for a batch, from the first gradient on."""
        waits_s = sum(point.wait_s for point in self.done.points[1:])
        return waits_s / (self.done.points[-1].at_s - self.done.points[0].at_s)

    @property
    def transport_s(self) -> float:
        """CPU-seconds of a step beyond its parts."""
        return 1.0 / self.done.steady.steps_per_cpu_s - self.parts.total


def run(setting: BenchSetting) -> BenchResult:
    """Parts, then one and two actors, of each case in turn.

    Raises:
        UnavailableError: a run or a part ended by itself.
    """
    runs: dict[tuple[str, int], list[PongRun]] = {(case, actors): [] for case in CASES for actors in ACTORS}
    for repetition in range(setting.repeat(REPETITIONS)):
        for case in CASES:
            seed = f"seed={repetition + 1}"
            parts = _measure_parts([seed, *CASES[case]])
            print_progress(f"pong, {case}: at most {1.0 / parts.total:,.0f} steps a CPU-second")
            for actors in ACTORS:
                done = _measure(setting, [seed, f"actor.replicas={actors}", *CASES[case]])
                runs[case, actors].append(PongRun(done, parts))
                rate = f"{done.steady.steps_per_cpu_s:,.0f} steps a CPU-second"
                print_progress(f"pong, {case}, actors: {actors}: {rate}")
    return BenchResult(
        name="pong",
        rows=[
            each
            for (case, actors), found in runs.items()
            for each in _rows(f"{case}, {actors} actors", found)
        ],
        samples=[
            sample
            for (case, actors), found in runs.items()
            for repetition, each in enumerate(found)
            for sample in samples_of(
                each.done, side="tidegate", repetition=repetition, label=f"{case}, {actors} actors"
            )
        ],
        notes=[
            "the peer is the sum of environment, inference, recording and training, each by itself",
            *(
                f"{case}, {actors} actors: {cost_by_process([each.done for each in found])}"
                for (case, actors), found in runs.items()
            ),
        ],
    )


def _rows(label: str, runs: list[PongRun]) -> list[Row]:
    split_us = {
        "environment": [1e6 * each.parts.environment for each in runs],
        "inference": [1e6 * each.parts.inference for each in runs],
        "recording": [1e6 * each.parts.recording for each in runs],
        "training": [1e6 * each.parts.training for each in runs],
        "transport": [1e6 * each.transport_s for each in runs],
    }
    return [
        row(
            f"steps a CPU-second, {label}",
            "steps/CPU-s",
            [each.done.steady.steps_per_cpu_s for each in runs],
            [1.0 / each.parts.total for each in runs],
            goal=Goal(STEPS_PER_CPU_S_MIN, "at_least", "figure"),
        ),
        row(
            f"steps a second, {label}",
            "steps/s",
            [each.done.steady.steps_per_s for each in runs],
        ),
        row(
            f"learner's wait for batches, {label}",
            "share of time",
            [each.input_wait_share for each in runs],
            goal=Goal(INPUT_WAIT_SHARE_MAX, "at_most", "figure"),
        ),
        *(row(f"a step's {part}, {label}", "CPU-µs", values) for part, values in split_us.items()),
    ]


def _measure_parts(overrides: list[str]) -> Parts:
    return measured_apart(
        "benchmarks.peers.segment_parts",
        [str(RUN_FILE), *overrides],
        Parts,
        what="The parts of a step",
        timeout_s=PARTS_TIMEOUT_S,
    )


def _measure(setting: BenchSetting, overrides: list[str]) -> TrainingRun:
    folder = setting.folder / "pong"
    done = measure_training(
        # An evaluation keeps an actor from its segments.
        up_command(RUN_FILE, folder=folder, overrides=[*overrides, "task_queue.evaluation_every_versions=0"]),
        folder=folder,
        length=LENGTH_QUICK if setting.quick else LENGTH,
    )
    remove_folder(folder)
    return done
