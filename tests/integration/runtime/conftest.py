"""Connections to the test's broker, of the platform's client and of the library alone."""

from collections.abc import AsyncGenerator

import pytest
from nats.aio.client import Client

from tests.support.broker import Broker
from tidegate.runtime.broker_client import BrokerClient


@pytest.fixture
async def client(nats: Broker) -> AsyncGenerator[BrokerClient]:
    """The client that services use."""
    client = BrokerClient()
    async with client:
        await client.connect(nats.url)
        yield client


@pytest.fixture
async def library(nats: Broker) -> AsyncGenerator[Client]:
    """The client library as it comes."""
    async with Client() as client:
        await client.connect(nats.url)
        yield client
