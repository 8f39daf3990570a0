"""Objects named as text, ``module:name``, imported only when they are used: for the literal tables of the platform."""

from importlib import import_module
from typing import Any


def load(target: str) -> Any:
    """Import ``module:name`` and return the object."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
