"""The settings of a run of arithmetic, and its store."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.integration.environment.groups import ENV
from tests.integration.environment.store import FakeStore, serving_store
from tests.support.broker import Broker
from tests.support.settings import make_settings
from tidegate.runtime.config import PolicyConfig, Settings, WorkloadConfig


@pytest.fixture
def settings(tmp_path: Path, nats: Broker) -> Settings:
    return msgspec.structs.replace(
        make_settings(tmp_path, broker_url=nats.url),
        workload=WorkloadConfig(kind="text", env=ENV, num_samples=2),
        policy=PolicyConfig(kind="char_lm"),
    )


@pytest.fixture
async def store(settings: Settings) -> AsyncIterator[FakeStore]:
    async with serving_store(settings) as store:
        yield store
