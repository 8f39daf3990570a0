"""Fixtures of the actor's tests; each file defines ``settings``."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.environment.store import FakeStore, serving_store
from tidegate.runtime.config import Settings


@pytest.fixture
async def store(settings: Settings) -> AsyncIterator[FakeStore]:
    """A trajectory store that records what is dropped and keeps what is uploaded."""
    async with serving_store(settings) as store:
        yield store
