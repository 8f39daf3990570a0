"""The same CartPole run with telemetry on and off: environment steps a CPU-second of all of the platform's processes.

On means traces at the default sampling and metrics, exported over OTLP to a sink outside of the measured tree.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from benchmarks.on_and_off import both_row, measure, rate, samples
from benchmarks.peers.otlp_sink import Counts
from benchmarks.results import BenchResult
from benchmarks.setting import BenchSetting
from tidegate.core.errors import UnavailableError
from tidegate.runtime.parent_death import dies_with_this_process
from tidegate.runtime.ports import LOOPBACK, pick_ports

REPETITIONS = 7
RATIO_MIN = 0.98
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
    sink = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peers.otlp_sink", endpoint, str(counts_file)],
        env={key: value for key, value in os.environ.items() if not key.startswith("OTEL_")},
        preexec_fn=dies_with_this_process(),
    )
    try:
        _wait_for_sink(counts_file)
        windows = measure(
            setting,
            "telemetry",
            overrides=[f"telemetry.otlp_endpoint={endpoint}"],
            repetitions=REPETITIONS,
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
            both_row(
                windows,
                "steps a CPU-second, on (tidegate) and off (peer)",
                "steps/CPU-s",
                rate,
                ratio_min=RATIO_MIN,
            )
        ],
        samples=samples(windows),
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
