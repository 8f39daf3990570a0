"""TLS to the broker on a real nats-server: certificates of its authority connect, renewed ones without a restart."""

import asyncio
import shutil
import signal
import subprocess
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.broker import free_port
from tests.support.certificates import make_identity, needs_openssl
from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.core.ids import RunId
from tidegate.launch.broker import find_server
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.tls import BROKER_FOLDER_VARIABLE, BrokerIdentity
from tidegate.wire.subjects import Topology

pytestmark = [pytest.mark.integration, needs_openssl]


class Server:
    """A nats-server with the certificates of a folder; ``restart`` reads them again."""

    def __init__(self, folder: Path, identity: Path) -> None:
        self.port = free_port()
        self._config, self._log = folder / "nats.conf", folder / "nats.log"
        self._config.write_text(f"""
listen: "127.0.0.1:{self.port}"
tls {{
  cert_file: "{identity / "tls.crt"}", key_file: "{identity / "tls.key"}", ca_file: "{identity / "ca.crt"}"
  verify: true, timeout: 60
}}
""")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [str(find_server()), "--config", str(self._config)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(timeout=60)

    def reload(self) -> None:
        """Let it read its configuration and certificates again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    async def connect(self, *, timeout_s: float) -> Bus:
        return await connect(self.port, timeout_s=timeout_s)


class SilentBroker:
    """Asks for TLS and answers no handshake: a broker that is stopped or far too busy."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.num_greeted = 0

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        async with await asyncio.start_server(self._greet, "127.0.0.1", self.port):
            yield

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"silent","max_payload":1048576,"tls_required":true}\r\n')
        await reader.readexactly(1)
        self.num_greeted += 1
        await asyncio.Event().wait()


async def connect(port: int, *, timeout_s: float) -> Bus:
    return await Bus.connect(
        f"tls://127.0.0.1:{port}",
        name="test",
        topology=Topology(RunId("run")),
        clock=SystemClock(),
        timeout_s=timeout_s,
    )


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return make_identity(tmp_path / "own")


@pytest.fixture
def server(tmp_path: Path, own: Path) -> Iterator[Server]:
    server = Server(tmp_path, own)
    yield server
    server.stop()


def replace_identity(folder: Path, made: Path) -> None:
    """As a kubelet updates a mounted Secret, file by file here."""
    for name in ("ca.crt", "tls.crt", "tls.key"):
        shutil.copyfile(made / name, folder / name)


async def test_only_a_certificate_of_the_brokers_authority_connects(
    server: Server, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BROKER_FOLDER_VARIABLE, str(own))
    bus = await server.connect(timeout_s=120.0)
    assert bus.connected
    await bus.close()
    monkeypatch.setenv(BROKER_FOLDER_VARIABLE, str(make_identity(tmp_path / "other")))
    with pytest.raises(UnavailableError):
        await server.connect(timeout_s=1.0)
    monkeypatch.delenv(BROKER_FOLDER_VARIABLE)
    with pytest.raises(UnavailableError):
        await server.connect(timeout_s=1.0)


async def test_connection_continues_with_a_renewed_certificate_of_another_authority_without_a_restart(
    server: Server, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BROKER_FOLDER_VARIABLE, str(own))
    bus = await server.connect(timeout_s=120.0)
    server.stop()
    replace_identity(own, make_identity(tmp_path / "renewed"))
    server.start()
    async with asyncio.timeout(200.0):
        while not bus.reconnects:
            await asyncio.sleep(0.05)
    assert bus.connected
    await bus.close()


async def test_service_that_starts_before_the_brokers_certificate_is_renewed_connects_when_it_is(
    server: Server, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, renewed = own, make_identity(tmp_path / "renewed")
    monkeypatch.setenv(BROKER_FOLDER_VARIABLE, str(renewed))
    connecting = asyncio.create_task(server.connect(timeout_s=120.0))
    while "TLS handshake error" not in server.log():
        assert not connecting.done(), "it connects by the renewed certificate only"
        await asyncio.sleep(0.05)
    replace_identity(served, renewed)
    server.reload()
    bus = await connecting
    assert bus.connected
    await bus.close()


async def test_connection_that_the_renewed_broker_refused_continues_once_its_own_certificate_is_renewed(
    server: Server, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has its new certificate before the client has its own, as on two nodes."""
    clients = tmp_path / "clients"
    shutil.copytree(own, clients)
    monkeypatch.setenv(BROKER_FOLDER_VARIABLE, str(clients))
    bus = await server.connect(timeout_s=120.0)
    server.stop()
    replace_identity(own, make_identity(tmp_path / "renewed"))
    server.start()
    async with asyncio.timeout(60.0):
        while server.log().count("TLS handshake error") < 2:
            await asyncio.sleep(0.05)
    replace_identity(clients, own)
    async with asyncio.timeout(200.0):
        while not bus.reconnects:
            await asyncio.sleep(0.05)
    assert bus.connected
    await bus.close()


async def test_authority_that_was_replaced_is_not_trusted_any_longer(own: Path, tmp_path: Path) -> None:
    identity = BrokerIdentity(own)
    trusted = identity.context.get_ca_certs(binary_form=True)
    replace_identity(own, make_identity(tmp_path / "renewed"))
    identity.renew()
    renewed = identity.context.get_ca_certs(binary_form=True)
    assert len(trusted) == len(renewed) == 1
    assert trusted != renewed


async def test_broker_that_answers_no_handshake_is_given_up(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BROKER_FOLDER_VARIABLE, str(own))
    broker = SilentBroker(free_port())
    async with broker.serving(), asyncio.timeout(60.0):
        with pytest.raises(UnavailableError):
            await connect(broker.port, timeout_s=1.0)
    assert broker.num_greeted >= 1


async def test_bus_closes_in_the_middle_of_a_handshake(
    server: Server, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BROKER_FOLDER_VARIABLE, str(own))
    bus = await server.connect(timeout_s=120.0)
    server.stop()
    broker = SilentBroker(server.port)
    async with broker.serving(), asyncio.timeout(60.0):
        while not broker.num_greeted:
            await asyncio.sleep(0.02)
        await bus.close()


async def test_folder_without_a_usable_certificate_is_named(
    tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BROKER_FOLDER_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="cannot be read"):
        await Bus.connect("tls://127.0.0.1:9", name="t", topology=Topology(RunId("run")), clock=SystemClock())
    (own / "tls.crt").write_text("no certificate")
    monkeypatch.setenv(BROKER_FOLDER_VARIABLE, str(own))
    with pytest.raises(ConfigError, match="cannot be used"):
        await Bus.connect("tls://127.0.0.1:9", name="t", topology=Topology(RunId("run")), clock=SystemClock())
