"""Fast start: no process loads what it does not use, and what is loaded before a fork may be forked."""

import subprocess
import sys

import pytest

from tidegate.launch.fork_server.preloading import is_supported
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


@pytest.mark.skipif(not is_supported(), reason="the fork server needs Linux")
def test_what_the_fork_server_loads_starts_no_thread_and_holds_nothing_that_services_do_not_use() -> None:
    program = """
import os, sys
from tidegate.launch.fork_server.preloading import SHARED_MODULES, load_shared
from importlib import import_module
load_shared()
for module in (*SHARED_MODULES, "gymnasium"):
    import_module(module)
unused = [name for name in ("torch", "aiohttp", "rich", "typer", "matplotlib") if name in sys.modules]
threads = len(os.listdir("/proc/self/task"))
sys.exit(f"unused: {unused}, threads: {threads}" if unused or threads != 1 else 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
