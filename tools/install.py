"""Install the locked environment into the checkout's .venv and print each step.

Usage: python3 tools/install.py runtime|dev. `dev` holds everything that `runtime` holds. Standard library only,
and no syntax newer than Python 3.7's, because this file must still start on a Python that is too old in order
to report it. Exits 0 when .venv matches the lock files; otherwise 1, after one sentence with the fix.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCKS = ROOT / "locks"
STAMP = (
    VENV / ".tidegate-installed"
)  # written last: an environment without it is unfinished and is made again
PYTHON_OLDEST = (3, 11)
# Measured on Linux x86-64 with the locks of November 2026.
LAYERS = {
    "runtime": "what a run needs: 2.8 GB to download the first time, 5.3 GB on disk",
    "dev": "what a run and the tests need: 2.9 GB to download the first time, 5.1 GB on disk",
}
# What a run imports: 1,950 of the 18,000 modules. Compiling them takes 6 CPU-seconds, which the first start would take.
IMPORTS_OF_A_RUN = """
from importlib import import_module
from tidegate.launch.fork_server.kinds import PRELOADED
for name in [name for names in PRELOADED.values() for name in names]:
    import_module(name)
import gymnasium, tidegate.cli.app, tidegate.cli.up.command, tidegate.cli.up.training, tidegate.runtime.process
"""
# Less free disk than this cannot hold the downloads and what is unpacked from them.
FREE_DISK_MIN_GB = 8


def main(arguments: list[str]) -> int:
    """Bring .venv to the layer named on the command line; returns the exit code."""
    if len(arguments) != 1 or arguments[0] not in LAYERS:
        return fail("Usage: python3 tools/install.py runtime|dev")
    layer = arguments[0]
    if is_current(layer):
        return 0
    obstacle = find_obstacle()
    if obstacle:
        return fail(obstacle)
    with one_install_at_a_time():
        return 0 if is_current(layer) else install(layer)


def find_obstacle() -> str:
    """Return what this machine lacks for an install and how to get it; empty when it lacks nothing."""
    if sys.version_info[:2] < PYTHON_OLDEST:
        return (
            f"Tidegate needs Python 3.11 or newer and this one is {version_text()}: install a newer python3, "
            "or name one you have, as in `make run PYTHON=python3.12`."
        )
    if not all(importlib.util.find_spec(module) for module in ("venv", "ensurepip")):
        return (
            "This Python cannot make virtual environments, as its venv or ensurepip module is missing: install "
            f"it (on Debian and Ubuntu: apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-venv) "
            "and run make again."
        )
    free_gb = shutil.disk_usage(str(ROOT)).free / 1e9
    if not STAMP.exists() and free_gb < FREE_DISK_MIN_GB:
        return (
            f"The install needs about {FREE_DISK_MIN_GB} GB of free disk and this checkout's disk has "
            f"{free_gb:.1f} GB: free some space and run make again."
        )
    return ""


def install(layer: str) -> int:
    """Install a layer from its lock file; returns the exit code."""
    started_s = time.monotonic()
    stamp = read_stamp()
    if stamp[:1] == ["dev"]:
        layer = "dev"  # installed test tools are updated, not removed
    report(f"installing into .venv {LAYERS[layer]}.")
    report(
        "nearly all of that is torch with its CUDA libraries: a minute on a fast network, five at 100 Mbit/s;"
    )
    report("a later install takes seconds, from uv's cache.")
    steps = plan_steps(layer, from_nothing=not stamp)
    if stamp:
        STAMP.unlink()
    for index, (what, command) in enumerate(steps, start=1):
        report(f"[{index}/{len(steps)}] {what}")
        if run_step(command) != 0:
            return fail(
                f"Step {index} of the install failed for the reason above, often the network or a full disk: "
                "put it right and run make again; what was downloaded is kept."
            )
    STAMP.write_text(f"{layer} {fingerprint(layer)} {ROOT}\n", encoding="utf-8")
    report(f"installed in {time.monotonic() - started_s:.0f} s.")
    return 0


def plan_steps(layer: str, *, from_nothing: bool) -> list[tuple[str, list[str]]]:
    """List the steps of an install in order, each with its description and its command."""
    python, uv, lock = str(VENV / "bin" / "python"), str(VENV / "bin" / "uv"), LOCKS / f"{layer}.txt"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
    sync = [uv, "pip", "sync", "--python", python, "--require-hashes", "--no-build"]
    editable = [uv, "pip", "install", "--quiet", "--python", python, "--offline", "--no-deps"]
    new_environment = (
        f"a virtual environment for Python {version_text()}",
        [sys.executable, "-m", "venv", "--clear", str(VENV)],
    )
    steps = [
        ("uv, the package installer", [*pip, "--requirement", str(LOCKS / "bootstrap.txt")]),
        (f"the packages pinned in locks/{layer}.txt, each checked against its hash", [*sync, str(lock)]),
        ("tidegate itself, from services/", [*editable, "--no-build-isolation", "--editable", str(ROOT)]),
        ("bytecode of what a run imports, for its first start", [python, "-c", IMPORTS_OF_A_RUN]),
    ]
    if layer == "dev":
        # Else each of the tests' workers compiles all of it, at the same time: 6 CPU-seconds each.
        sources = [python, "-m", "compileall", "-q", "-j", "0", "services", "benchmarks", "tools"]
        steps.append(("bytecode of the sources, which all tests import", sources))
    return [new_environment, *steps] if from_nothing else steps


def run_step(command: list[str]) -> int:
    """Run one command of the install and forward its output; returns its exit code."""
    # On a slow network single downloads stall for longer than uv's own timeout (30 s), because it runs many at once.
    environment = {"UV_HTTP_TIMEOUT": "120", **os.environ, "UV_NO_PROGRESS": "1"}
    environment["PYTHONDONTWRITEBYTECODE"] = ""  # as if it was not set
    with subprocess.Popen(
        command, cwd=str(ROOT), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            if not line.startswith(
                (" + ", " - ", " ~ ")
            ):  # a hundred package names, which the lock file lists
                sys.stderr.write(f"  {line}")
                sys.stderr.flush()
    return process.returncode


def is_current(layer: str) -> bool:
    """Tell whether .venv already holds this layer."""
    stamp = read_stamp()
    return bool(stamp) and stamp[0] in {layer, "dev"} and stamp[1] == fingerprint(stamp[0])


def fingerprint(layer: str) -> str:
    """Digest of everything that determines an environment."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    # Without the settings of ruff, pytest and similar tools, which install nothing.
    sections = [
        part for part in project.split("\n[") if not part.startswith("tool.") or part.startswith("tool.hatch")
    ]
    digest = hashlib.sha256("\n[".join(sections).encode())
    for path in (LOCKS / "bootstrap.txt", LOCKS / f"{layer}.txt", Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def read_stamp() -> list[str]:
    """Read layer, fingerprint and folder of the last finished install; empty when there is no usable one."""
    if not STAMP.is_file() or not (VENV / "bin" / "python").exists():
        return []
    words = STAMP.read_text(encoding="utf-8").rstrip("\n").split(" ", 2)
    # The scripts of an environment contain its path, so a moved environment is made again.
    return words if len(words) == 3 and words[0] in LAYERS and words[2] == str(ROOT) else []


@contextmanager
def one_install_at_a_time() -> Generator[None, None, None]:
    """Lock the checkout's folder, so that `make run` started beside `make test` waits for its install."""
    folder = os.open(str(ROOT), os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another install into this checkout is running: waiting for it to end.")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def version_text() -> str:
    """Write this interpreter's version, such as 3.11.7."""
    return ".".join(str(part) for part in sys.version_info[:3])


def report(line: str) -> None:
    """Print one line of progress to standard error; standard output is for the command that runs afterwards."""
    sys.stderr.write(f"tidegate: {line}\n")
    sys.stderr.flush()


def fail(sentence: str) -> int:
    """Print why the install cannot continue; returns its exit code."""
    report(sentence)
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(fail("The install was interrupted: run make again to continue it."))
