"""Runs the cases of a second device in a process of their own.

PyTorch starts a thread for each device at the first backward pass of a process. A device that is registered later, as
in a process that ran other tests before, has none, and its first backward pass fails.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CASES = ("tests/unit/learner/second_device_cases.py", "tests/unit/actor/engines/second_device_cases.py")
# Twenty seconds of CPU time, for which busy machines took 280 s.
TIMEOUT_S = 580.0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_learner_and_engine_work_with_their_parameters_on_a_second_device() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CASES],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
