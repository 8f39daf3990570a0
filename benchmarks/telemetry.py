"""The same CartPole run with telemetry on and off: environment steps a CPU-second of all of the platform's processes.

On means traces at the default sampling and metrics, exported over OTLP to a sink outside of the measured tree. Both
run at the same time through the same windows: a difference of two percent is far below what a shared machine does to
two runs one after the other.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from benchmarks.cartpole import alternating, lengths
from benchmarks.peers.otlp_sink import Counts
from benchmarks.results import BenchResult, Goal, Sample, Side, row
from benchmarks.setting import BenchSetting, print_progress
from benchmarks.training_run import Window, measure_beside, remove_folder, up_command
from tidegate.core.errors import UnavailableError
from tidegate.runtime.parent_death import dies_with_this_process
from tidegate.runtime.ports import LOOPBACK, pick_ports

REPETITIONS = 7
RATIO_MIN = 0.98
SIDES: tuple[Side, ...] = ("tidegate", "peer")
# The learner's work a step is the same with every seed; one seed makes the runs of a pair alike.
SEED = 1
READY_TIMEOUT_S = 20.0


def run(setting: BenchSetting) -> BenchResult:
    """On and off side by side; "peer" is off.

    Raises:
        UnavailableError: a run ended early, or nothing arrived at the sink.
    """
    setting.folder.mkdir(parents=True, exist_ok=True)
    counts_file = setting.folder / "otlp-counts.json"
    [port] = pick_ports(1)
    endpoint = f"{LOOPBACK}:{port}"
    windows: dict[Side, list[Window]] = {"tidegate": [], "peer": []}
    sink = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peers.otlp_sink", endpoint, str(counts_file)],
        env={key: value for key, value in os.environ.items() if not key.startswith("OTEL_")},
        preexec_fn=dies_with_this_process(),
    )
    try:
        _wait_for_sink(counts_file)
        for repetition in range(setting.repeat(REPETITIONS)):
            found = _beside(setting, repetition, endpoint=endpoint)
            for side in SIDES:
                windows[side].append(found[side])
            print_progress(
                f"telemetry {repetition + 1}: "
                + ", ".join(f"{side} {rate(found[side]):,.0f} steps a CPU-second" for side in SIDES)
            )
    finally:
        sink.terminate()
        sink.wait()
    counts = msgspec.json.decode(counts_file.read_bytes(), type=Counts)
    if not counts.trace_exports or not counts.metric_exports:
        raise UnavailableError(
            "Telemetry was on and nothing arrived",
            why=f"{counts.trace_exports} exports of traces, {counts.metric_exports} of metrics",
            fix="the ratio would mean nothing: see the logs of a run with telemetry.otlp_endpoint set",
        )
    return BenchResult(
        name="telemetry",
        rows=[
            row(
                "steps a CPU-second, on (tidegate) and off (peer)",
                "steps/CPU-s",
                [rate(each) for each in windows["tidegate"]],
                [rate(each) for each in windows["peer"]],
                goal=Goal(RATIO_MIN, "at_least", "ratio"),
            )
        ],
        samples=[
            Sample(
                side=side,
                label="on" if side == "tidegate" else "off",
                repetition=repetition,
                work=window.steps,
                unit="steps",
                wall_s=window.wall_s,
                cpu_s=window.cpu_s,
                details={"updates": float(window.updates)},
            )
            for side in SIDES
            for repetition, window in enumerate(windows[side])
        ],
        notes=[
            f"arrived: {counts.trace_exports} exports of traces ({counts.trace_bytes / 1e6:.2f} MB),"
            f" {counts.metric_exports} of metrics ({counts.metric_bytes / 1e6:.2f} MB)"
        ],
    )


def _beside(setting: BenchSetting, repetition: int, *, endpoint: str) -> dict[str, Window]:
    """One pair of runs; who starts first changes."""
    order = alternating(repetition)
    folders = {side: setting.folder / f"telemetry-{side}-{repetition}" for side in order}
    overrides = {"tidegate": [f"telemetry.otlp_endpoint={endpoint}"], "peer": []}
    commands = {
        side: up_command(setting.run_file, folder=folders[side], overrides=[f"seed={SEED}", *overrides[side]])
        for side in order
    }
    found = measure_beside(commands, folders, lengths(setting))
    for folder in folders.values():
        remove_folder(folder)
    return found


def rate(window: Window) -> float:
    """Environment steps a CPU-second."""
    return window.steps / window.cpu_s


def _wait_for_sink(counts_file: Path) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not counts_file.exists():
        if time.monotonic() > deadline_s:
            raise UnavailableError(f"The OTLP sink did not start within {READY_TIMEOUT_S:g} s")
        time.sleep(0.05)
