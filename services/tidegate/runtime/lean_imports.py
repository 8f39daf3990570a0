"""Loads libraries without the optional packages that they import only because those are installed.

structlog takes rich to draw tracebacks on terminals, nats-py takes aiohttp to speak WebSocket: no process of a platform
does either. Measured on two cores: rich costs 0.2 CPU-seconds and 5 MB a process, aiohttp 0.2 CPU-seconds and 6 MB.
"""

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import cast

# The module that takes an optional package, and the package.
_WITHOUT = {"structlog": "rich", "nats.aio.client": "aiohttp"}
# torch looks through the metadata of all installed packages for plug-ins of further devices, which no trainer uses:
# 0.1 CPU-seconds.
_VARIABLES = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def load_lean_libraries() -> None:
    """Import them without their optional packages, which other modules can still import afterwards.

    Call it before the first import of a library; one that is loaded already stays as it is.
    """
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    for library, optional in _WITHOUT.items():
        if library in sys.modules or optional in sys.modules:
            continue
        # An entry of None makes the import of that name fail as if it were not installed.
        sys.modules[optional] = cast("ModuleType", None)
        try:
            import_module(library)
        finally:
            del sys.modules[optional]
