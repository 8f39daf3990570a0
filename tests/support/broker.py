"""A real nats-server: one that a test may kill -9 and start again, or an account of one that many tests share."""

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections import deque
from pathlib import Path

from tidegate.launch.broker import find_server
from tidegate.runtime.ports import LOOPBACK, is_free

READY_TIMEOUT_S = 60.0
# Below the range that `tidegate up` picks its ports from, so that tests and platforms never meet on one.
TEST_PORTS = range(10_000, 20_000)
# So many tests share one server, each in an account of its own; the next test starts a fresh server. Measured: a start
# takes 0.17 s, an account 2 ms of it and 0.5 MB, and eight streams in an account 15 ms.
ACCOUNTS_PER_SERVER = 64


def _ports_of_this_process() -> list[int]:
    """Test ports in random order. The workers of pytest-xdist share a part, and pytest without workers has the rest.

    Every second one: a server with TLS answers for its health on the next port.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        ports = list(TEST_PORTS[-2000::2])
    else:
        num_workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        ports = list(TEST_PORTS[2 * int(worker.removeprefix("gw")) : -2000 : 2 * num_workers])
    random.shuffle(ports)
    return ports


_ports = deque(_ports_of_this_process())


def free_port() -> int:
    """A loopback port where nothing listens now; no outgoing connection is given it, and no call for a long time.

    The seven services of a test ask one after another and listen much later: drawn without a memory, two of them
    would share a port once in five hundred tests.
    """
    for _ in range(len(_ports)):
        _ports.rotate(-1)
        if is_free(_ports[-1]):
            return _ports[-1]
    raise AssertionError(f"no port of {TEST_PORTS} is free: end what listens there")


class NatsServer:
    """One process with file storage in ``directory``, and ``num_accounts`` accounts that see nothing of each other."""

    def __init__(self, directory: Path, *, num_accounts: int = 0) -> None:
        self.port = free_port()
        self._directory = directory
        self._num_accounts = num_accounts
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, account: int | None = None) -> str:
        """Where it listens, with the credentials of an account."""
        credentials = "" if account is None else f"test-{account}:secret@"
        return f"nats://{credentials}{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Start on the same port and data every time, and wait until it listens."""
        self._directory.mkdir(parents=True, exist_ok=True)
        config = self._directory / "server.conf"
        config.write_text(self._config())
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen([str(find_server()), "-c", str(config)], stdout=log, stderr=log)
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline_s:
            with (
                contextlib.suppress(OSError),
                socket.create_connection((LOOPBACK, self.port), timeout=0.2),
            ):
                return
            time.sleep(0.02)
        raise AssertionError(f"nats-server did not start: {(self._directory / 'server.log').read_text()}")

    def kill(self) -> None:
        """As a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(timeout=60)
            self._process = None

    def _config(self) -> str:
        # Streams reserve what they may hold: without the bound, the accounts' sum passes the free disk.
        lines = [
            f'listen: "{LOOPBACK}:{self.port}"',
            "max_payload: 2MB",
            f'jetstream {{ store_dir: "{self._directory / "data"}", max_file_store: 1TB }}',
        ]
        if self._num_accounts:
            accounts = [
                f"test-{index} {{ jetstream: enabled, users: [{{ user: test-{index}, password: secret }}] }}"
                for index in range(self._num_accounts)
            ]
            lines += ["accounts {", *accounts, "}"]
        return "\n".join(lines) + "\n"


class Broker:
    """A test's broker: where to connect, and the means to kill the server when the test has one of its own."""

    def __init__(self, url: str, *, server: NatsServer | None = None) -> None:
        self.url = url
        self._server = server

    def kill(self) -> None:
        """As a crash would."""
        self._own_server().kill()

    def start(self) -> None:
        """Start the killed server again, on the same port and data."""
        self._own_server().start()

    async def restart(self, *, down_s: float = 0.0) -> None:
        """Crash, and come back after ``down_s`` seconds."""
        self.kill()
        await asyncio.sleep(down_s)
        await asyncio.to_thread(self.start)

    def _own_server(self) -> NatsServer:
        assert self._server is not None, "other tests use this server: mark the test with own_broker"
        return self._server


class SharedBrokers:
    """Brokers for tests that leave the server alone: one account after another, on a fresh server every so often."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._servers: list[NatsServer] = []
        self._num_lent = 0

    def lend(self) -> Broker:
        """An account that no test has used."""
        account = self._num_lent % ACCOUNTS_PER_SERVER
        if account == 0:
            self.close()
            server = NatsServer(self._directory / str(len(self._servers)), num_accounts=ACCOUNTS_PER_SERVER)
            server.start()
            self._servers.append(server)
        self._num_lent += 1
        return Broker(self._servers[-1].url(account))

    def close(self) -> None:
        """Kill the server of the accounts lent so far."""
        for server in self._servers[-1:]:
            server.kill()


def own_broker(directory: Path) -> Broker:
    """A broker on a server of its own, started."""
    server = NatsServer(directory)
    server.start()
    return Broker(server.url(), server=server)
