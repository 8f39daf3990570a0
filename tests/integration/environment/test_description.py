"""``DescribeEnvironment`` over gRPC: the environment itself, errors of their kind, and callers that wait for it."""

import asyncio
from pathlib import Path

import msgspec
import pytest
import structlog

from tests.support.broker import Broker
from tests.support.call_credentials import permitted_channel
from tests.support.environments import CARTPOLE
from tests.support.service_harness import channel_of_test, make_context, running
from tests.support.settings import make_settings
from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.environment import main
from tidegate.environment.config import EnvironmentConfig
from tidegate.runtime.bus import Bus
from tidegate.runtime.config import Settings
from tidegate.runtime.described_environment import ask_description
from tidegate.runtime.drain import Drain
from tidegate.wire.clients.environment import EnvironmentClient

pytestmark = pytest.mark.integration
CONFIG = EnvironmentConfig()
LOG: structlog.stdlib.BoundLogger = structlog.get_logger("test")


def settings_for(folder: Path, nats: Broker, **workload: object) -> Settings:
    settings = make_settings(folder, broker_url=nats.url)
    return msgspec.structs.replace(settings, workload=msgspec.structs.replace(settings.workload, **workload))


async def test_environment_is_described_by_a_copy_of_it(tmp_path: Path, nats: Broker, bus: Bus) -> None:
    settings = settings_for(tmp_path, nats)
    async with running(main.build, CONFIG, make_context("environment", settings, bus=bus)) as context:
        found = await ask_description(channel_of_test(context, "environment"), Drain(), LOG)
    assert found.steps_per_cpu_s > 0.0
    assert msgspec.structs.replace(found, steps_per_cpu_s=0.0) == CARTPOLE


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"env": "CartPol-v1"}, "There is no environment 'CartPol-v1'. .*CartPole-v1"),
        ({"env_kwargs": {"gravity": 1.0}}, "has no argument 'gravity'"),
        ({"env": "tests.unit.vector_envs.envs:Words-v0"}, r"observations.what is Text\("),
    ],
)
async def test_environment_that_cannot_be_described_is_a_mistake_of_the_run_file(
    workload: dict[str, object],
    message: str,
    tmp_path: Path,
    nats: Broker,
    bus: Bus,
) -> None:
    settings = settings_for(tmp_path, nats, **workload)
    async with running(main.build, CONFIG, make_context("environment", settings, bus=bus)) as context:
        with pytest.raises(ConfigError, match=message):
            await ask_description(channel_of_test(context, "environment"), Drain(), LOG)


async def test_asking_waits_for_a_service_that_starts_later(tmp_path: Path, nats: Broker, bus: Bus) -> None:
    settings = settings_for(tmp_path, nats)
    channel = permitted_channel(settings.addresses["environment"][0])
    asking = asyncio.create_task(ask_description(channel, Drain(), LOG))
    with pytest.raises(UnavailableError):
        await EnvironmentClient(channel).describe()
    async with running(main.build, CONFIG, make_context("environment", settings, bus=bus)):
        assert (await asking).env_id == "CartPole-v1"
    await channel.close()


async def test_asking_ends_at_its_deadline_and_when_its_service_drains(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, broker_url="")
    channel = permitted_channel(settings.addresses["environment"][0])
    with pytest.raises(UnavailableError, match="environment"):
        await ask_description(channel, Drain(), LOG, deadline_s=0.1)
    draining = Drain()
    draining.request()
    with pytest.raises(UnavailableError, match="drains"):
        await ask_description(channel, draining, LOG)
    await channel.close()
