"""What the broker refuses a user, and messages at which the code of a service raises: counted, and logged at times."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.broker import free_port
from tests.support.service_harness import until
from tidegate.core.errors import RecordError, UnavailableError
from tidegate.core.ids import RunId
from tidegate.launch.broker import BrokerEndpoint, find_server, wait_ready
from tidegate.runtime.bus import Bus
from tidegate.runtime.bus_failures import BusFailures, refused_operation
from tidegate.runtime.clock import SystemClock
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration
TOPOLOGY = Topology(RunId("run"))


class Server:
    """A server with one user, who may use one subject and whose password can be exchanged."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._config = folder / "nats.conf"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, *, password: str) -> None:
        """Start, or start again with another password."""
        await self.stop()
        self._config.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f"authorization {{ users: [{{ user: actor, password: {password}, permissions: {{"
            ' publish: ["allowed"], subscribe: ["allowed", "_INBOX_actor.>"] } }] }\n'
        )
        self._process = await asyncio.create_subprocess_exec(
            str(find_server()), "--config", str(self._config), stderr=asyncio.subprocess.DEVNULL
        )
        await wait_ready(BrokerEndpoint(self.port), timeout_s=120.0)

    async def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()

    async def connect(self, *, password: str, timeout_s: float = 60.0) -> Bus:
        return await Bus.connect(
            f"nats://127.0.0.1:{self.port}",
            user="actor",
            password=password,
            name="actor-0",
            topology=TOPOLOGY,
            clock=SystemClock(),
            timeout_s=timeout_s,
        )


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path)
    yield server
    await server.stop()


async def ignore(_data: bytes, _headers: dict[str, str]) -> None:
    """A handler."""


async def test_refused_publishes_and_subscriptions_are_counted_and_logged_once_in_a_while(
    server: Server,
) -> None:
    await server.start(password="first")
    with capture_logs() as lines:
        bus = await server.connect(password="first")
        for _ in range(5):
            await bus.publish_core("forbidden", b"")
        await bus.subscribe("forbidden.too", ignore)
        await bus.publish_core("allowed", b"")
        await until(lambda: bus.failures.refused == {"publish": 5, "subscribe": 1, "connect": 0})
        await bus.close()
    refused = [line for line in lines if line["event"] == "broker_refused"]
    assert [(line["operation"], line["user"]) for line in refused] == [
        ("publish", "actor"),
        ("subscribe", "actor"),
    ]
    assert "forbidden" in refused[0]["error"].lower()


async def test_password_that_the_broker_does_not_know_is_counted_while_the_client_tries_again(
    server: Server,
) -> None:
    await server.start(password="first")
    bus = await server.connect(password="first")
    await server.start(password="second")
    await until(lambda: bus.failures.refused["connect"] >= 1)
    await bus.close()
    with capture_logs() as lines, contextlib.suppress(UnavailableError):
        await server.connect(password="wrong", timeout_s=0.5)
    assert [line["operation"] for line in lines if line["event"] == "broker_refused"] == ["connect"]


@pytest.mark.parametrize(
    ("text", "operation"),
    [
        ('nats: permissions violation for publish to "tg.run.ver.x"', "publish"),
        ('nats: Permissions Violation for Subscription to "tg.run.task.x"', "subscribe"),
        ('nats: Permissions Violation for Subscription to "x" using queue "q"', "subscribe"),
        ("nats: 'Authorization Violation'", "connect"),
        ("nats: slow consumer", None),
        ("", None),
    ],
)
def test_operation_is_read_from_the_error_of_the_broker(text: str, operation: str | None) -> None:
    assert refused_operation(text) == operation


def failing(error: Exception) -> Callable[[], int]:
    def decode() -> int:
        raise error

    return decode


def test_defect_of_a_decoder_makes_the_message_unreadable_and_is_counted_by_stream() -> None:
    failures = BusFailures()
    with capture_logs() as lines:
        for _ in range(3):
            with pytest.raises(RecordError, match="defect of the service"):
                failures.read("tg.run.task.default", failing(KeyError("field")))
    assert failures.messages == {"TASKS": 3}
    assert [line["event"] for line in lines] == ["message_handler_failed"], "once in a while"


@pytest.mark.parametrize("error", [RecordError("no task"), MemoryError()])
def test_message_that_is_none_and_want_of_memory_are_no_defect(error: Exception) -> None:
    failures = BusFailures()
    with pytest.raises(type(error)):
        failures.read("tg.run.task.default", failing(error))
    assert failures.messages == {}


@pytest.mark.parametrize(
    ("subject", "source"),
    [
        ("tg.run.stats.actor", "statistics"),
        ("tg.run.ver.default", "POLICY"),
        ("_INBOX_actor.x.1", "replies"),
        ("tg.run", "replies"),
    ],
)
def test_failed_messages_are_counted_by_stream(subject: str, source: str) -> None:
    failures = BusFailures()
    failures.note_message(subject, KeyError())
    assert failures.messages == {source: 1}
