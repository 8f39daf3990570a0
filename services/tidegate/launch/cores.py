"""The cores of a machine that each process of a run may use: ``cores`` of the run file.

Linux only. A process takes its cores itself (``runtime.own_cores``).
"""

import os
import sys
from collections.abc import Mapping

from tidegate.core.errors import ConfigError
from tidegate.launch.services import SERVICES
from tidegate.runtime.own_cores import CORES_VARIABLE

# The broker, and every service that the run file gives no cores of its own.
OTHERS = "others"

Cores = Mapping[str, tuple[int, ...]]


def check_cores(cores: Cores) -> ConfigError | None:
    """The first name of ``cores`` that is no service's, or None."""
    unknown = sorted(cores.keys() - {*SERVICES, OTHERS})
    if not unknown:
        return None
    return ConfigError(
        f"cores names {unknown[0]!r}, which is no service",
        fix=f"name one of {', '.join(SERVICES)}, or {OTHERS} for all that are not named",
    )


def check_machine(cores: Cores) -> None:
    """Check that this machine has the cores.

    Raises:
        ConfigError: this process may not use one of them, or the system assigns none.
    """
    if not cores:
        return
    if not sys.platform.startswith("linux"):
        raise ConfigError(f"cores is set, and {sys.platform} assigns no cores", fix="remove cores")
    usable = os.sched_getaffinity(0)
    for name, numbers in cores.items():
        if missing := sorted(set(numbers) - usable):
            raise ConfigError(
                f"cores gives {name} core {missing[0]}, which this machine does not have or this shell may not use",
                fix=f"choose among {', '.join(map(str, sorted(usable)))}",
            )


def cores_variable(cores: Cores, name: str) -> dict[str, str]:
    """What a process of the service ``name``, or ``OTHERS``, gets in its environment."""
    numbers = cores.get(name, cores.get(OTHERS, ()))
    return {CORES_VARIABLE: ",".join(map(str, numbers))} if numbers else {}
