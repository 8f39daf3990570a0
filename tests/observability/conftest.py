"""One run of CartPole under real components serves all tests: first undisturbed, then with a learner slowed down."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.observability.stack import ROOT, Stack, missing, stack, until
from tidegate.launch.run_folder import read_record

UNDISTURBED_S = 60.0
SLOWED_S = 60.0
# Eighty times slower: an update of 30 ms takes over two seconds, and what waits for it gets old.
FACTOR = 80.0
# Above what a machine with seven times its load shows undisturbed (2.5 s at worst, 0.4 s idle), far below what a slowed
# learner leads to.
AGE_BOUND_S = 3.0
FIRST_GRADIENT_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Observed:
    """What the run left behind. Moments in seconds since the epoch."""

    stack: Stack
    folder: Path
    run_id: str
    started_at_s: float
    undisturbed_until_s: float
    ended_at_s: float
    slowed_at_s: float
    fired: dict[str, dict[str, Any]]
    slos: list[dict[str, Any]]


@pytest.fixture(scope="session")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Generator[Observed, None, None]:
    """The run, and the components that still hold what they were told of it."""
    if reason := missing("otelcol", "jaeger", "prometheus"):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("observability")
    with stack(folder) as components:
        yield _run(components, folder / "run")


@pytest.fixture(scope="session")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tables and pictures go: ``TIDEGATE_OBSERVABILITY_OUT``, or a folder that is forgotten."""
    chosen = os.environ.get("TIDEGATE_OBSERVABILITY_OUT")
    folder = Path(chosen) if chosen else tmp_path_factory.mktemp("findings")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def tidegate(*arguments: str) -> list[str]:
    """A command of this installation."""
    return [sys.executable, "-m", "tidegate.cli.main", *arguments]


def _run(components: Stack, folder: Path) -> Observed:
    started_at_s = time.time()
    overrides = {
        "telemetry.otlp_endpoint": components.otlp,
        "telemetry.metric_period_s": "1",
        "telemetry.sample_ratio": "0.2",
        "slos.age_p95.bound": f"{AGE_BOUND_S:g}",
        "until": "mean_return>=1000000",
    }
    settings = [part for name, value in overrides.items() for part in ("--set", f"{name}={value}")]
    command = tidegate(
        "up", str(ROOT / "runs/cartpole.yaml"), "--dir", str(folder), "--for", "10m", *settings
    )
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT) as up:
        try:
            until(
                lambda: components.query("tidegate_trajectory_consumed_total > 10"),
                what="training",
                timeout_s=FIRST_GRADIENT_TIMEOUT_S,
            )
            time.sleep(UNDISTURBED_S)
            undisturbed_until_s = time.time()
            fired = _slow_down(components, folder)
        finally:
            up.terminate()
            up.wait(timeout=60)
    time.sleep(3.0)  # the last scrape
    answer = subprocess.run(
        tidegate("slo", "--json", "--dir", str(folder)), check=True, capture_output=True, cwd=ROOT
    )
    return Observed(
        stack=components,
        folder=folder,
        run_id=read_record(folder).run_id,
        started_at_s=started_at_s,
        undisturbed_until_s=undisturbed_until_s,
        ended_at_s=time.time(),
        slowed_at_s=undisturbed_until_s,
        fired=fired,
        slos=json.loads(answer.stdout)["slos"],
    )


def _slow_down(components: Stack, folder: Path) -> dict[str, dict[str, Any]]:
    """Every alert that fires while the learner is slowed, as Prometheus first told it, with ``seen_after_s``."""
    fired: dict[str, dict[str, Any]] = {}
    before = set(components.firing())
    started_s = time.monotonic()
    command = tidegate(
        "throttle", "learner", "--factor", f"{FACTOR:g}", "--for", f"{SLOWED_S:g}s", "--dir", str(folder)
    )
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT
    ) as throttle:
        while throttle.poll() is None:
            for name, alert in components.firing().items():
                if name not in before:
                    fired.setdefault(name, {**alert, "seen_after_s": time.monotonic() - started_s})
            time.sleep(0.5)
    return fired
