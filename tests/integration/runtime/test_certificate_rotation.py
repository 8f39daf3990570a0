"""Rotated certificates of gRPC clients: a channel connects again with those that its folder holds now."""

import asyncio
import gc
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from tests.support.broker import free_port
from tests.support.call_credentials import accepted
from tests.support.certificates import MountedSecret, make_identity, needs_openssl
from tidegate.runtime.rpc import HEALTH_READINESS, RpcServer, ask_health, open_channel
from tidegate.runtime.tls import FOLDER_VARIABLE

pytestmark = [pytest.mark.integration, needs_openssl]

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
TIMEOUT_S = 30.0


class Peers:
    """A server and a client's channel that read their certificates in one folder."""

    def __init__(self, folder: Path) -> None:
        self._made = folder
        self.secret = MountedSecret(folder / "mounted", make_identity(folder / "first"))
        self.port = free_port()

    async def start(self) -> None:
        self.server = RpcServer([], accepted())
        await self.server.start(f"127.0.0.1:{self.port}")
        await self.server.set_serving(serving=True)

    def connect(self) -> None:
        self.channel = open_channel(f"127.0.0.1:{self.port}", None)

    def renew(self, name: str) -> None:
        """Another authority and another certificate."""
        self.secret.swap(make_identity(self._made / name))

    async def restart_server(self) -> None:
        await self.server.stop(grace_s=0.0)
        await self.start()

    async def ask(self) -> str:
        return await ask_health(self.channel, HEALTH_READINESS, timeout_s=2.0)

    def watch(self) -> Any:
        """A stream of the server's health, which never ends by itself."""
        stub: Any = health_pb2_grpc.HealthStub(self.channel)
        return stub.Watch(health_pb2.HealthCheckRequest(service=HEALTH_READINESS))

    def connections(self) -> int:
        """How many connections of this process lead to the server."""
        return sum(
            1
            for connection in psutil.Process().net_connections("tcp")
            if connection.status == psutil.CONN_ESTABLISHED
            and connection.raddr
            and connection.raddr.port == self.port
        )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.05)


async def until_answered(peers: Peers) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while await peers.ask() != "":
            await asyncio.sleep(0.1)


@pytest.fixture
async def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Peers]:
    peers = Peers(tmp_path)
    monkeypatch.setenv(FOLDER_VARIABLE, str(peers.secret.folder))
    await peers.start()
    peers.connect()
    await until_answered(peers)
    yield peers
    await peers.channel.close()
    await peers.server.stop(grace_s=0.0)


async def test_channel_connects_again_with_a_certificate_of_another_authority(peers: Peers) -> None:
    for name in ("second", "third"):
        peers.renew(name)
        await peers.restart_server()
        await until_answered(peers)


async def test_channel_that_failed_with_its_old_certificate_connects_once_there_is_a_new_one(
    peers: Peers, tmp_path: Path
) -> None:
    """The server has its new certificate before the client has its own, as on two nodes."""
    old = MountedSecret(tmp_path / "clients", tmp_path / "first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(old.folder))
        await peers.channel.close()
        peers.connect()
        await until_answered(peers)
    peers.renew("second")
    await peers.restart_server()
    assert await peers.ask() != ""
    old.swap(tmp_path / "second")
    await until_answered(peers)


async def test_calls_in_flight_outlive_a_renewal_and_new_calls_use_the_new_certificate(peers: Peers) -> None:
    watched = peers.watch()
    assert (await watched.read()).status == SERVING
    peers.renew("second")
    async with asyncio.timeout(TIMEOUT_S):
        while peers.connections() == 1:
            assert await peers.ask() == ""
            await asyncio.sleep(0.1)
    await peers.server.set_serving(serving=False)
    assert (await watched.read()).status == NOT_SERVING
    watched.cancel()
    del watched  # gRPC keeps a connection as long as the object of a call on it
    gc.collect()
    await until(lambda: peers.connections() == 1)


async def test_connections_of_earlier_certificates_are_closed_when_no_call_needs_them(peers: Peers) -> None:
    for number in range(3):
        with capture_logs() as logs:
            peers.renew(f"renewed-{number}")
            async with asyncio.timeout(TIMEOUT_S):
                while not any(entry["event"] == "certificate_renewed" for entry in logs):
                    assert await peers.ask() == ""
                    await asyncio.sleep(0.1)
    await until(lambda: peers.connections() == 1)


async def test_channel_keeps_its_certificate_while_its_folder_holds_none_that_can_be_used(
    peers: Peers, tmp_path: Path
) -> None:
    other = make_identity(tmp_path / "other")
    mixed = tmp_path / "mixed"
    shutil.copytree(tmp_path / "first", mixed)
    shutil.copyfile(other / "tls.key", mixed / "tls.key")
    empty = tmp_path / "empty"
    empty.mkdir()
    for unusable in (mixed, empty):
        with capture_logs() as logs:
            peers.secret.swap(unusable)
            async with asyncio.timeout(TIMEOUT_S):
                while not any(entry["event"] == "certificate_unusable" for entry in logs):
                    assert await peers.ask() == ""
                    await asyncio.sleep(0.1)
    peers.secret.swap(other)
    await peers.restart_server()
    await until_answered(peers)


async def test_closing_a_channel_ends_the_calls_of_every_certificate(peers: Peers) -> None:
    watched = peers.watch()
    await watched.read()
    peers.renew("second")
    async with asyncio.timeout(TIMEOUT_S):
        while peers.connections() == 1:
            assert await peers.ask() == ""
            await asyncio.sleep(0.1)
    await peers.channel.close()
    assert watched.cancelled()
    del watched  # gRPC keeps a connection as long as the object of a call on it
    gc.collect()
    await until(lambda: peers.connections() == 0)


async def test_state_and_readiness_are_those_of_the_newest_connection(peers: Peers) -> None:
    peers.renew("second")
    await peers.restart_server()
    await until_answered(peers)
    await peers.channel.channel_ready()
    assert peers.channel.get_state() is grpc.ChannelConnectivity.READY
