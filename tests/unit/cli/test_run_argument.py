from pathlib import Path

import pytest

from tidegate.cli.run_argument import named_run
from tidegate.core.errors import ConfigError


def test_run_is_named_by_argument_or_by_option() -> None:
    assert named_run(Path("a"), None) == Path("a")
    assert named_run(None, Path("a")) == Path("a")
    assert named_run(Path("a"), Path("a")) == Path("a")
    assert named_run(None, None) is None


def test_two_different_runs_are_refused() -> None:
    with pytest.raises(ConfigError, match="names two runs, a and --dir b"):
        named_run(Path("a"), Path("b"))
