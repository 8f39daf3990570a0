"""Mutual TLS: only peers of one authority connect, and a kubelet without a certificate may check health."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.support.broker import free_port
from tests.support.call_credentials import accepted
from tests.support.certificates import make_identity, needs_openssl
from tidegate.core.errors import ConfigError
from tidegate.runtime.rpc import HEALTH_LIVENESS, HEALTH_READINESS, RpcServer, ask_health, open_channel
from tidegate.runtime.tls import FOLDER_VARIABLE

pytestmark = [pytest.mark.integration, needs_openssl]


@pytest.fixture
async def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A server that is ready and shows the certificate in ``own``."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(make_identity(tmp_path / "own")))
    server = RpcServer([], accepted())
    address = f"127.0.0.1:{free_port()}"
    await server.start(address)
    await server.set_serving(serving=True)
    yield address
    await server.stop(grace_s=0.0)


async def ask(address: str, name: str = HEALTH_READINESS) -> str:
    channel = open_channel(address, None)
    try:
        return await ask_health(channel, name, timeout_s=60.0)
    finally:
        await channel.close()


async def test_peers_of_one_authority_talk(address: str) -> None:
    assert await ask(address) == ""


async def test_a_stranger_with_another_authority_is_refused(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(make_identity(tmp_path / "stranger")))
    assert await ask(address) != ""


async def test_a_caller_without_a_certificate_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert await ask(address) != ""


async def test_health_is_answered_in_plain_text_on_the_next_port(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE)
    host, _, port = address.partition(":")
    health_address = f"{host}:{int(port) + 1}"
    assert await ask(health_address) == ""
    assert await ask(health_address, HEALTH_LIVENESS) == ""


async def test_a_folder_without_certificates_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match=r"tls\.crt"):
        await RpcServer([], accepted()).start(f"127.0.0.1:{free_port()}")


async def test_calls_of_the_generated_stubs_are_encrypted_as_well(address: str) -> None:
    channel = open_channel(address, None)
    await channel.channel_ready()
    assert channel.get_state() is grpc.ChannelConnectivity.READY
    await channel.close()
