"""Passwords at the broker are rotated while services run: no restart, no message lost, none handled twice unseen."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.broker import free_port
from tests.support.service_harness import until
from tidegate.core.ids import RunId
from tidegate.launch.broker import BrokerEndpoint, find_server, wait_ready
from tidegate.runtime import changing_file
from tidegate.runtime.broker_password import BrokerPassword, broker_password, parse_passwords
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.consumer import Consumer
from tidegate.runtime.files import replace_file
from tidegate.wire.subjects import POOL, Topology

pytestmark = pytest.mark.integration
TOPOLOGY = Topology(RunId("run"))
STREAMS = TOPOLOGY.streams(max_tasks=1000)
TASKS = TOPOLOGY.task_consumer(POOL, ack_wait_s=60.0, max_running=100)
FIRST, SECOND, THIRD = "p-first", "p-second", "p-third"


class Broker:
    """A server whose passwords are in a file that it includes, as in the chart."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        config = self._folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\ninclude "auth/passwords.conf"\n'
            f'jetstream {{ store_dir: "{self._folder / "data"}" }}\n'
            "authorization { users: [{ user: actor, password: $TG_ACTOR }] }\n"
        )
        (self._folder / "auth").mkdir()
        self._write(FIRST)
        with (self._folder / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                str(find_server()), "--config", str(config), stderr=log
            )
        await wait_ready(BrokerEndpoint(self.port), timeout_s=120.0)

    def _write(self, password: str) -> None:
        replace_file(self._folder / "auth" / "passwords.conf", f'TG_ACTOR: "{password}"\n'.encode())

    def rotate(self, password: str) -> None:
        """Let it read another password, as the chart's container `reloader` does."""
        self._write(password)
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    async def connect(self, password: BrokerPassword) -> Bus:
        return await Bus.connect(
            f"nats://127.0.0.1:{self.port}",
            user="actor",
            password=password,
            name="actor-0",
            topology=TOPOLOGY,
            clock=SystemClock(),
            timeout_s=60.0,
        )

    async def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    monkeypatch.setattr(changing_file, "LOOK_PERIOD_S", 0.0)
    broker = Broker(tmp_path)
    await broker.start()
    yield broker
    await broker.stop()


def write(path: Path, *passwords: str) -> None:
    replace_file(path, "".join(f"{password}\n" for password in passwords).encode())


async def taken(consumer: Consumer, num: int) -> list[bytes]:
    """Messages as they come, acknowledged."""
    found: list[bytes] = []
    while len(found) < num:
        for delivery in await consumer.fetch(num, wait_s=1.0):
            found.append(delivery.data)
            await delivery.ack()
    return found


@pytest.mark.parametrize("first_to_see", ["broker", "client"])
async def test_rotation_ends_no_connection_for_good_and_loses_no_message(
    broker: Broker, tmp_path: Path, first_to_see: str
) -> None:
    path = tmp_path / "password"
    write(path, FIRST, SECOND)
    bus = await broker.connect(broker_password("", str(path)))
    await bus.bootstrap(STREAMS, consumers=[TASKS])
    followed: list[bytes] = []

    async def follow(data: bytes, _headers: dict[str, str]) -> None:
        followed.append(data)

    await bus.subscribe(TOPOLOGY.event("x"), follow)
    consumer = await bus.consumer(TASKS.durable)
    await bus.publish(TOPOLOGY.tasks(POOL), b"before", message_id="before")
    # In flight across the rotation: delivered, not acknowledged.
    [held] = await consumer.fetch(1, wait_s=5.0)
    if first_to_see == "client":
        write(path, SECOND, THIRD, FIRST)
    broker.rotate(SECOND)
    await until(lambda: bus.reconnects == 1)
    if first_to_see == "broker":
        write(path, SECOND, THIRD, FIRST)
    await held.ack()
    await bus.publish(TOPOLOGY.tasks(POOL), b"after", message_id="after")
    assert await taken(consumer, 1) == [b"after"], "what was held was acknowledged, not delivered again"
    await bus.publish(TOPOLOGY.event("x"), b"event", message_id="event")
    await until(lambda: followed == [b"event"])
    bus.check()
    await bus.close()


async def test_connection_survives_every_rotation_of_a_series(broker: Broker, tmp_path: Path) -> None:
    path = tmp_path / "password"
    write(path, FIRST, "p-0")
    bus = await broker.connect(broker_password("", str(path)))
    for number in range(3):
        broker.rotate(f"p-{number}")
        await until(lambda expected=number + 1: bus.reconnects == expected)
        write(path, f"p-{number}", f"p-{number + 1}")
    await bus.bootstrap(STREAMS[:1])
    await bus.close()


async def test_service_that_starts_between_two_rotations_tries_each_password(
    broker: Broker, tmp_path: Path
) -> None:
    path = tmp_path / "password"
    write(path, SECOND, THIRD, FIRST)
    bus = await broker.connect(broker_password("", str(path)))
    assert bus.connected
    await bus.close()


def test_passwords_are_tried_in_turn_and_a_changed_file_from_its_first_line() -> None:
    known = [("a", "b")]
    password = BrokerPassword(lambda: known[0])
    assert password.current() == "a"
    password.refuse()
    assert password.current() == "b"
    password.refuse()
    assert password.current() == "a"
    password.refuse()
    known[0] = ("c", "d")
    assert password.current() == "c"


def test_file_without_a_password_is_none() -> None:
    assert parse_passwords(b"a\n\nb\n") == ("a", "b")
    with pytest.raises(ValueError, match="empty"):
        parse_passwords(b"\n")
