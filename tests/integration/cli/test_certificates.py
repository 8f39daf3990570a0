"""Certificates of ``tidegate certificates`` on real sockets: services and the broker connect with them."""

import asyncio
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.broker import free_port
from tests.support.call_credentials import accepted
from tests.support.certificates import needs_openssl
from tidegate.cli.app import run
from tidegate.core.ids import RunId
from tidegate.launch.broker import find_server
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.rpc import HEALTH_READINESS, RpcServer, ask_health, open_channel
from tidegate.runtime.tls import BROKER_FOLDER_VARIABLE, FOLDER_VARIABLE
from tidegate.wire.subjects import Topology

pytestmark = [pytest.mark.integration, needs_openssl]

TIMEOUT_S = 60.0


async def issue(folder: Path) -> None:
    """What the chart's Job does, into folders instead of Secrets."""
    arguments = [
        "certificates",
        f"--folder={folder}",
        "--authority=authority",
        "--certificate=learner-tls=learner,localhost",
        "--certificate=actor-tls=actor,actor",
        "--certificate=nats-tls=nats,localhost",
    ]
    assert await asyncio.to_thread(run, arguments) == 0


def forget(folder: Path) -> None:
    """Every certificate, and the authority."""
    for file in folder.glob("*/*"):
        file.unlink()


async def test_service_calls_another_with_issued_certificates_and_with_those_of_a_new_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await issue(tmp_path)
    address = f"localhost:{free_port()}"

    async def serve() -> RpcServer:
        monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "learner-tls"))
        server = RpcServer([], accepted())
        await server.start(address)
        await server.set_serving(serving=True)
        return server

    async def until_answered() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while await ask_health(channel, HEALTH_READINESS, timeout_s=2.0) != "":
                await asyncio.sleep(0.1)

    server = await serve()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "actor-tls"))
    channel = open_channel(address, None)
    try:
        await until_answered()
        forget(tmp_path)
        await issue(tmp_path)
        await server.stop(grace_s=0.0)
        server = await serve()
        await until_answered()
    finally:
        await channel.close()
        await server.stop(grace_s=0.0)


async def test_service_connects_to_the_broker_with_issued_certificates_and_with_those_of_a_new_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await issue(tmp_path)
    port, config, log = free_port(), tmp_path / "nats.conf", tmp_path / "nats.log"
    own = tmp_path / "nats-tls"
    config.write_text(f"""
listen: "127.0.0.1:{port}"
tls {{ cert_file: "{own}/tls.crt", key_file: "{own}/tls.key", ca_file: "{own}/ca.crt", verify: true, timeout: 60 }}
""")

    def serve() -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            return subprocess.Popen([str(find_server()), "--config", str(config)], stderr=file)

    def end(process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=TIMEOUT_S)

    server = serve()
    try:
        monkeypatch.setenv(BROKER_FOLDER_VARIABLE, str(tmp_path / "actor-tls"))
        bus = await Bus.connect(
            f"tls://localhost:{port}",
            name="test",
            topology=Topology(RunId("run")),
            clock=SystemClock(),
            timeout_s=TIMEOUT_S,
        )
        end(server)
        forget(tmp_path)
        await issue(tmp_path)
        server = serve()
        async with asyncio.timeout(TIMEOUT_S):
            while not bus.reconnects:
                await asyncio.sleep(0.05)
        assert bus.connected
        await bus.close()
    finally:
        end(server)
