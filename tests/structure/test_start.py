"""Fast start: neither the command line nor a service without tensors loads torch."""

import subprocess
import sys

import pytest

from tidegate.launch.services import SERVICES

# Services that compute with tensors.
HEAVY = {"actor", "learner"}
LIGHT = [
    "tidegate.cli.main",
    *(f"{entry.package}.main" for service, entry in SERVICES.items() if service not in HEAVY),
]


@pytest.mark.parametrize("module", LIGHT)
def test_importing_a_light_entry_point_loads_no_torch(module: str) -> None:
    program = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or f"{module} loads torch"
