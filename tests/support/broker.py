"""A real nats-server that tests may kill -9 and start again on the same port and data."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import time
from pathlib import Path

from tidegate.launch.broker import find_server
from tidegate.runtime.ports import pick_ports

READY_TIMEOUT_S = 10.0
_given: set[int] = set()


def free_port() -> int:
    """A loopback port that nobody listens on now, and that neither a later call nor an outgoing connection is given.

    Seven services of one world ask one after another and listen much later: drawn from ten thousand without a memory,
    two of them would share a port once in five hundred worlds. A process makes far fewer worlds than would use up the
    range; ``pick_ports`` says so if not.
    """
    [port] = pick_ports(1, taken=frozenset(_given))
    _given.add(port)
    return port


class Broker:
    """One server with file storage in ``directory``."""

    def __init__(self, directory: Path) -> None:
        """Nothing runs yet."""
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start on the same port and data as ever, and wait until it listens."""
        self._directory.mkdir(parents=True, exist_ok=True)
        config = self._directory / "server.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\nmax_payload: 2MB\n'
            f'jetstream {{ store_dir: "{self._directory / "data"}" }}\n'
        )
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen([str(find_server()), "-c", str(config)], stdout=log, stderr=log)
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline_s:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=0.2),
            ):
                return
            time.sleep(0.02)
        raise AssertionError(f"nats-server did not start: {(self._directory / 'server.log').read_text()}")

    def kill(self) -> None:
        """As a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(timeout=5)
            self._process = None

    async def restart(self, *, down_s: float = 0.0) -> None:
        """Crash, stay away, come back."""
        self.kill()
        await asyncio.sleep(down_s)
        await asyncio.to_thread(self.start)
