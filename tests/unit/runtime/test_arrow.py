import importlib

import pytest

from tidegate.core.errors import ConfigError
from tidegate.runtime.arrow import load_pyarrow


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"tidegate\[data\]"):
        load_pyarrow("pyarrow.parquet")
