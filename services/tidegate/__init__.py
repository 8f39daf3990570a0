"""Tidegate: asynchronous reinforcement learning as services, with staleness as a declared and enforced limit.

``train`` and ``train_async`` start a run and wait for its end, ``Run`` reads one, ``Policy`` acts; the other names are
what callbacks are told (docs/python.md).
"""

from typing import Any

# Every service imports this package: what only programs of users need is loaded when they name it. Type checkers read
# ``__init__.pyi``.
_HOMES = {
    "EndOfRun": "tidegate.cli.callbacks.events",
    "KeptCheckpoint": "tidegate.cli.callbacks.events",
    "Policy": "tidegate.api.acting",
    "Run": "tidegate.api.runs",
    "RunEvaluation": "tidegate.cli.callbacks.events",
    "RunUpdate": "tidegate.cli.callbacks.events",
    "train": "tidegate.api.training",
    "train_async": "tidegate.api.training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
