"""One seed is one run, in this process and in another one with other hashes."""

import json
import os
import subprocess
import sys

import pytest

from tidegate.sim.scenario import draw_scenario
from tidegate.sim.simulation import replay_command, simulate

pytestmark = pytest.mark.simulation

SEED = 7
TICKS = 300


def run_as_typed(*, hash_seed: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "tidegate.cli.main", "sim", f"--seed={SEED}", f"--ticks={TICKS}", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_same_seed_gives_the_same_run() -> None:
    first, second = (simulate(draw_scenario(SEED, ticks=TICKS)) for _ in range(2))
    assert first == second
    assert first.messages > 0


def test_another_seed_gives_another_run() -> None:
    assert simulate(draw_scenario(SEED, ticks=TICKS)).digest != simulate(draw_scenario(8, ticks=TICKS)).digest


def test_command_line_replays_a_run_in_another_process() -> None:
    here = simulate(draw_scenario(SEED, ticks=TICKS)).digest
    assert [run_as_typed(hash_seed=hash_seed)["digest"] for hash_seed in ("1", "2")] == [here, here]


def test_replay_command_names_the_whole_scenario() -> None:
    assert replay_command(draw_scenario(3, ticks=600, max_lag=16)) == (
        'make sim SEED=3 ARGS="--ticks 600 --max-lag 16"'
    )
    assert replay_command(draw_scenario(3, ticks=600, max_lag=0, faults=False)) == (
        'make sim SEED=3 ARGS="--ticks 600 --max-lag 0 --no-faults"'
    )
    assert replay_command(draw_scenario(3, ticks=600, max_lag=1, central_inference=True)) == (
        'make sim SEED=3 ARGS="--ticks 600 --max-lag 1 --central-inference"'
    )
