"""One store a test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.trajectory_store.building import started_store
from tidegate.trajectory_store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = started_store(tmp_path)
    yield store
    store.close()
