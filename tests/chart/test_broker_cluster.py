"""The broker of the preset `production-ha`: three servers that authenticate each other by certificates."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import nats.errors
import pytest
from nats.aio.client import Client

from tests.chart.rendering import needs_helm
from tests.chart.test_broker_permissions import Server
from tests.support.broker import free_port
from tests.support.broker_users import CONSUMERS, STREAMS, TOPOLOGY
from tests.support.certificates import make_identity, needs_openssl
from tidegate.core.errors import TidegateError
from tidegate.runtime.tls import BROKER_FOLDER_VARIABLE, BrokerIdentity

pytestmark = [pytest.mark.chart, needs_helm, needs_openssl]
PRESET = "production-ha"
NUM_SERVERS = 3
# What holds here is that a server stays away: it has tried to join this often.
NUM_REFUSALS = 2
PASSWORD = "p0"


class Cluster:
    """The servers of the preset on loopback, which know each other's routes and the authority of ``identity``."""

    def __init__(self, folder: Path, identity: Path) -> None:
        self._folder = folder
        self._identity = identity
        # One more than there are servers: an intruder knows them, and they do not look for it.
        self._routes = [free_port() for _ in range(NUM_SERVERS + 1)]
        self.servers = [self._start(index, identity) for index in range(NUM_SERVERS)]

    def _start(self, index: int, identity: Path) -> Server:
        folder = self._folder / f"server-{index}"
        folder.mkdir()
        routes = self._routes
        return Server(folder, index=index, routes=routes, password=PASSWORD, identity=identity, preset=PRESET)

    def start_intruder(self, identity: Path) -> Server:
        """A server with the routes' password and another certificate."""
        return self._start(NUM_SERVERS, identity)

    def log(self, index: int) -> str:
        """What a server has logged."""
        return (self._folder / f"server-{index}" / "log").read_text(encoding="utf-8", errors="replace")

    async def client(self, user: str, *, index: int) -> Client:
        """A user's bare connection to one of the servers."""
        client = Client()
        await client.connect(
            self.servers[index].url,
            user=user,
            password=PASSWORD,
            tls=BrokerIdentity(self._identity).context,
            inbox_prefix=f"_INBOX_{user}",
            connect_timeout=60,
        )
        return client

    async def names(self) -> set[str]:
        """The servers that are connected to the first one, itself included."""
        found = set[str]()
        client = await self.client("system", index=0)
        inbox = await cast("Any", client).subscribe(reply := client.new_inbox())
        await client.publish("$SYS.REQ.SERVER.PING", b"", reply=reply)
        with contextlib.suppress(nats.errors.TimeoutError):
            while True:
                answer = (await inbox.next_msg(timeout=1.0)).data.decode()
                found.add(answer.partition('"name":"')[2].partition('"')[0])
        await client.close()
        return found

    async def until_formed(self) -> None:
        while len(await self.names()) < NUM_SERVERS:
            await asyncio.sleep(0.2)

    def close(self) -> None:
        for server in self.servers:
            server.close()


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    own = make_identity(tmp_path / "own")
    monkeypatch.setenv(BROKER_FOLDER_VARIABLE, str(own))
    cluster = Cluster(tmp_path, own)
    try:
        async with asyncio.timeout(120):
            await cluster.until_formed()
        yield cluster
    finally:
        cluster.close()


async def test_three_servers_with_certificates_keep_three_copies(cluster: Cluster) -> None:
    bus = await cluster.servers[1].bus("bootstrap")
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(TidegateError):
                await bus.bootstrap(STREAMS, consumers=CONSUMERS, copies=NUM_SERVERS)
                break
            await asyncio.sleep(0.2)
    client = await cluster.client("bootstrap", index=2)
    made = await client.request(f"$JS.API.STREAM.INFO.{STREAMS[0].name}", b"", timeout=60)
    assert len(json.loads(made.data)["cluster"]["replicas"]) == NUM_SERVERS - 1
    await client.close()
    actor = await cluster.servers[0].bus("actor")
    await actor.publish(TOPOLOGY.trajectories(0), b"work", message_id="m")
    await actor.close()
    await bus.close()


@pytest.mark.parametrize("how", ["of another authority", "none"])
async def test_server_with_the_password_and_without_a_certificate_of_the_release_does_not_join(
    cluster: Cluster, tmp_path: Path, how: str
) -> None:
    other = make_identity(tmp_path / "other")
    # It trusts the cluster, so that nothing but its own certificate keeps it out.
    (other / "ca.crt").write_bytes((tmp_path / "own" / "ca.crt").read_bytes())
    intruder = cluster.start_intruder(other)
    refused_before = 0
    try:
        if how == "none":
            intruder.close()
            refused_before = refusals_in(cluster)
            intruder.restart_without_route_tls()
        async with asyncio.timeout(120):
            while refusals_in(cluster) < refused_before + NUM_REFUSALS:
                await asyncio.sleep(0.2)
        assert await cluster.names() == {f"t-nats-{index}" for index in range(NUM_SERVERS)}
    finally:
        intruder.close()


def refusals_in(cluster: Cluster) -> int:
    """How often one of the servers refused a route for its handshake."""
    return sum(
        "tls" in line.lower() and "rid:" in line and "[ERR]" in line
        for index in range(NUM_SERVERS)
        for line in cluster.log(index).splitlines()
    )
