"""Fast start: no process loads what it does not use, and what is loaded before a fork may be forked."""

import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.launch.fork_server import kinds
from tidegate.launch.fork_server.preloading import is_supported
from tidegate.launch.services import SERVICES

CARTPOLE = Path(__file__).parents[2] / "runs" / "cartpole.yaml"
# Services that compute with tensors.
HEAVY = {"actor", "learner"}
LIGHT = [
    "tidegate.cli.main",
    *(f"{entry.package}.main" for service, entry in SERVICES.items() if service not in HEAVY),
]


def test_importing_a_light_entry_point_loads_no_torch() -> None:
    # In one process: what any of them loads is loaded, and the first one that loads torch is told.
    program = f"""
import sys
from importlib import import_module
for module in {LIGHT!r}:
    import_module(module)
    if "torch" in sys.modules:
        sys.exit(f"{{module}} loads torch")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# What the libraries of a run import only because it is installed, and what draws for a terminal.
NEVER_IN_A_SERVICE = {"rich", "pygments", "attr", "aiohttp", "pydantic", "markdown_it", "matplotlib", "torch"}


def loaded_by(arguments: list[str]) -> str:
    """What of ``NEVER_IN_A_SERVICE`` the command line has loaded when it forks for the first time, or ends."""
    program = f"""
import os, sys
end = os._exit
def stop(*exit_code):
    print(*sorted({NEVER_IN_A_SERVICE!r} & set(sys.modules)), "and no more", flush=True)
    end(0)
os.fork = os._exit = stop
sys.argv = ["tidegate", *{arguments!r}]
from tidegate.cli.main import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr


@pytest.mark.skipif(not is_supported(), reason="fork servers need Linux")
def test_up_forks_before_it_has_loaded_what_no_service_uses(tmp_path: Path) -> None:
    arguments = ["up", str(CARTPOLE), "--set", "seed=2", "--until", "mean_return>=9", "--dir", str(tmp_path)]
    assert loaded_by(arguments) == "and no more"


def test_a_service_as_a_program_loads_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    assert loaded_by(["serve", "actor", "--run-dir", str(tmp_path)]) == "and no more"


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
