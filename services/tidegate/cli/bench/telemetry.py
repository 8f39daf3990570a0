"""The same CartPole run with telemetry on and off: environment steps a CPU-second of all of the platform's processes.

On means traces at the default sampling and metrics, exported over OTLP to a sink outside of the measured tree.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from tidegate.cli.bench.cartpole import alternating, lengths, samples_of
from tidegate.cli.bench.peers.otlp_sink import Counts
from tidegate.cli.bench.results import BenchResult, Goal, Sample, Side, row
from tidegate.cli.bench.setting import BenchSetting, say
from tidegate.cli.bench.training_run import TrainingRun, measure_training, remove_folder, up_command
from tidegate.cli.up.ports import LOOPBACK, pick_ports
from tidegate.core.errors import UnavailableError

REPETITIONS = 7
RATIO_MIN = 0.98
# The learner's work a step is the same with every seed; one seed makes the runs of a pair alike.
SEED = 1
READY_TIMEOUT_S = 20.0


def run(setting: BenchSetting) -> BenchResult:
    """On and off in turns; "peer" is off.

    Raises:
        UnavailableError: a run ended early, or nothing arrived at the sink.
    """
    setting.folder.mkdir(parents=True, exist_ok=True)
    counts_file = setting.folder / "otlp-counts.json"
    [port] = pick_ports(1)
    endpoint = f"{LOOPBACK}:{port}"
    runs: dict[Side, list[TrainingRun]] = {"tidegate": [], "peer": []}
    samples: list[Sample] = []
    sink = subprocess.Popen(
        [sys.executable, "-m", "tidegate.cli.bench.peers.otlp_sink", endpoint, str(counts_file)],
        env={key: value for key, value in os.environ.items() if not key.startswith("OTEL_")},
    )
    try:
        _wait_for_sink(counts_file)
        for repetition in range(setting.repeat(REPETITIONS)):
            for side in alternating(repetition):
                folder = setting.folder / f"telemetry-{side}-{repetition}"
                overrides = [f"seed={SEED}"]
                if side == "tidegate":
                    overrides.append(f"telemetry.otlp_endpoint={endpoint}")
                command = up_command(setting.run_file, folder=folder, overrides=overrides)
                done = measure_training(command, folder=folder, length=lengths(setting))
                remove_folder(folder)
                runs[side].append(done)
                samples += samples_of(
                    done, side=side, repetition=repetition, label="on" if side == "tidegate" else "off"
                )
                say(f"telemetry {side} {repetition + 1}: {samples[-2].per_cpu_s:,.0f} steps a CPU-second")
    finally:
        sink.terminate()
        sink.wait()
    counts = msgspec.json.decode(counts_file.read_bytes(), type=Counts)
    if not counts.trace_exports or not counts.metric_exports:
        raise UnavailableError(
            "Telemetry was on and nothing arrived",
            why=f"{counts.trace_exports} exports of traces, {counts.metric_exports} of metrics",
            fix="the ratio would say nothing: see the logs of a run with telemetry.otlp_endpoint set",
        )
    return BenchResult(
        name="telemetry",
        rows=[
            row(
                "steps a CPU-second, on (tidegate) and off (peer)",
                "steps/CPU-s",
                [each.steady.steps / each.steady.cpu_s for each in runs["tidegate"]],
                [each.steady.steps / each.steady.cpu_s for each in runs["peer"]],
                goal=Goal(RATIO_MIN, "at_least", "ratio"),
            )
        ],
        samples=samples,
        notes=[
            f"arrived: {counts.trace_exports} exports of traces ({counts.trace_bytes / 1e6:.2f} MB),"
            f" {counts.metric_exports} of metrics ({counts.metric_bytes / 1e6:.2f} MB)"
        ],
    )


def _wait_for_sink(counts_file: Path) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not counts_file.exists():
        if time.monotonic() > deadline_s:
            raise UnavailableError(f"The OTLP sink did not start within {READY_TIMEOUT_S:g} s")
        time.sleep(0.05)
