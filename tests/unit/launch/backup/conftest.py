import os
from pathlib import Path

import pytest

from tests.unit.cli.run_folder import write_accounting, write_checkpoint


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of files are made durable here, which no test can see."""

    def nothing(_descriptor: int) -> None:
        return None

    monkeypatch.setattr(os, "fsync", nothing)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    write_checkpoint(made, write_accounting(made), step=3)
    return made
