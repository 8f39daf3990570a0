"""Fast start: neither the command line nor a service without tensors loads torch."""

import subprocess
import sys

import pytest

LIGHT = [
    "tidegate.cli.main",
    "tidegate.task_queue.main",
    "tidegate.environment.main",
    "tidegate.trajectory_store.main",
    "tidegate.weight_distribution.main",
    "tidegate.admission.main",
]


@pytest.mark.parametrize("module", LIGHT)
def test_importing_a_light_entry_point_loads_no_torch(module: str) -> None:
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or f"{module} loads torch"
