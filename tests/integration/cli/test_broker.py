import asyncio
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.broker import free_port
from tests.support.disks import fill, mounted_small_disk
from tidegate.core.errors import UnavailableError
from tidegate.core.ids import RunId
from tidegate.launch.broker import (
    BrokerEndpoint,
    has_write_error,
    new_passwords,
    process,
    wait_ready,
    write_config,
)
from tidegate.launch.supervisor import Supervisor
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.wire.permissions import BOOTSTRAP
from tidegate.wire.subjects import Topology

pytestmark = pytest.mark.integration

TOPOLOGY = Topology(RunId("a-run"))
PASSWORDS = new_passwords()


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    supervisor = Supervisor()
    yield supervisor
    await supervisor.stop(["nats-server"], grace_s=5)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_small_disk(tmp_path / "disk", size_mb=8) as place:
        yield place


def start(
    supervisor: Supervisor, folder: Path, *, store: Path | None = None, monitor_port: int = 0
) -> BrokerEndpoint:
    broker = BrokerEndpoint(port=free_port())
    config = write_config(
        folder / "nats.conf",
        broker.port,
        passwords=PASSWORDS,
        run_id="a-run",
        store=store or folder / "nats",
        monitor_port=monitor_port or free_port(),
    )
    supervisor.start(process(config, log=folder / "nats.log", environment={}))
    return broker


async def connect(
    broker: BrokerEndpoint, *, user: str, password: str | None = None, timeout_s: float = 60.0
) -> Bus:
    return await Bus.connect(
        broker.url,
        user=user,
        password=PASSWORDS[user] if password is None else password,
        name="test",
        topology=TOPOLOGY,
        clock=SystemClock(),
        timeout_s=timeout_s,
    )


async def create_streams(broker: BrokerEndpoint) -> None:
    bus = await connect(broker, user=BOOTSTRAP)
    await bus.bootstrap(TOPOLOGY.streams(max_tasks=8))
    await bus.close()


async def test_broker_serves_every_stream_of_the_table_to_users_with_their_password_only(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    broker = start(supervisor, tmp_path)
    await wait_ready(broker)
    await create_streams(broker)
    bus = await connect(broker, user="task-queue")
    await bus.publish(TOPOLOGY.tasks("default"), b"kept", message_id="1")
    await bus.close()
    assert list((tmp_path / "nats").rglob("*.blk"))
    for user, password in (("task-queue", "guess"), ("task-queue", PASSWORDS["actor"]), ("", "")):
        with pytest.raises(UnavailableError):
            await connect(broker, user=user, password=password, timeout_s=0.5)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
async def test_broker_that_was_killed_returns_on_its_port_with_its_messages(
    supervisor: Supervisor, tmp_path: Path, sent: signal.Signals
) -> None:
    broker = start(supervisor, tmp_path)
    await wait_ready(broker)
    await create_streams(broker)
    bus = await connect(broker, user="task-queue")
    await bus.publish(TOPOLOGY.tasks("default"), b"kept", message_id="1")
    pid = supervisor.view()[0].pid
    assert pid is not None
    os.kill(pid, sent)
    while supervisor.view()[0].restarts == 0 or not bus.connected:
        await asyncio.sleep(0.02)
    again = await bus.publish(TOPOLOGY.tasks("default"), b"more", message_id="2")
    assert again.sequence == 2
    await bus.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the small disk is a tmpfs of Linux")
async def test_broker_whose_disk_was_full_stores_again_once_it_is_killed(
    supervisor: Supervisor, small_disk: Path, tmp_path: Path
) -> None:
    monitor_port = free_port()
    broker = start(supervisor, tmp_path, store=small_disk / "nats", monitor_port=monitor_port)
    await wait_ready(broker)
    await create_streams(broker)
    bus = await connect(broker, user="task-queue")
    await bus.publish(TOPOLOGY.tasks("default"), b"kept", message_id="1")
    assert not await has_write_error(monitor_port)
    ballast = small_disk / "ballast"
    fill(ballast)
    with pytest.raises(UnavailableError):
        await bus.publish(TOPOLOGY.tasks("default"), b"refused" * 1000, message_id="2", deadline_s=2.0)
    ballast.unlink()
    # Its stream stores nothing more, although there is space.
    with pytest.raises(UnavailableError):
        await bus.publish(TOPOLOGY.tasks("default"), b"refused", message_id="3", deadline_s=2.0)
    assert await has_write_error(monitor_port)
    supervisor.kill("nats-server")
    published = await bus.publish(TOPOLOGY.tasks("default"), b"more", message_id="4", deadline_s=60.0)
    assert published.sequence == 2
    assert not await has_write_error(monitor_port)
    await bus.close()


async def test_broker_that_does_not_answer_has_no_known_write_error() -> None:
    assert not await has_write_error(free_port())


def test_broker_config_is_for_this_account_only_even_where_another_file_was(tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    path.write_text("")
    path.chmod(0o644)
    write_config(path, 4222, passwords=PASSWORDS, run_id="a", store=tmp_path / "nats", monitor_port=8222)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_broker_that_never_answers_is_named_with_its_log() -> None:
    with pytest.raises(UnavailableError, match=r"logs/nats-server\.log"):
        await wait_ready(BrokerEndpoint(port=free_port()), timeout_s=0.1)
