"""pyarrow, imported on first use, because it takes a hundred megabytes."""

import importlib
from typing import Any

from tidegate.core.errors import ConfigError


def load_pyarrow(name: str) -> Any:
    """One of pyarrow's modules, untyped as the library is.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            "Parquet and Arrow files need the library pyarrow",
            why=str(error),
            fix="pip install 'tidegate[data]'",
        ) from error
