"""Fast start: no process loads what it does not use, and what is loaded before a fork may be forked."""

import subprocess
import sys

import pytest

from tidegate.launch.fork_server import kinds
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


@pytest.mark.skipif(not is_supported(), reason="fork servers need Linux")
@pytest.mark.parametrize(
    ("server", "unused"),
    [
        (kinds.LIGHT, {"torch", "aiohttp", "rich", "typer", "matplotlib"}),
        (kinds.TORCH, {"aiohttp", "rich", "typer", "matplotlib", "torch._dynamo", "transformers"}),
    ],
)
def test_what_a_fork_server_loads_starts_no_thread_and_holds_nothing_that_its_services_do_not_use(
    server: str, unused: set[str]
) -> None:
    program = f"""
import sys
from importlib import import_module
from tidegate.launch.fork_server.kinds import PRELOADED
from tidegate.launch.fork_server.preloading import load_shared
from tidegate.runtime.threads import num_threads
load_shared()
for module in (*PRELOADED[{server!r}], "gymnasium"):
    import_module(module)
loaded = {unused!r} & set(sys.modules)
sys.exit(f"unused: {{loaded}}, threads: {{num_threads()}}" if loaded or num_threads() != 1 else 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
