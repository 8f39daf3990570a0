"""Every user of a laptop's broker, on a real nats-server with the configuration of `tidegate up`."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import broker_users as table
from tests.support.broker import free_port
from tests.support.broker_users import CONSUMERS, ENVIRONMENT, RUN, STREAMS, TOPOLOGY, USERS, User
from tidegate.core.errors import StaleFolderError, UnavailableError
from tidegate.core.ids import TaskId
from tidegate.launch.broker import BrokerEndpoint, find_server, new_passwords, wait_ready, write_config
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.wire.subjects import POOL

pytestmark = pytest.mark.integration
URL = "nats://127.0.0.1:{port}"
NUM_MESSAGES = 20


class Server:
    """A running server; a user's bus, or a bare connection for requests that no service sends."""

    def __init__(self, port: int, passwords: dict[str, str]) -> None:
        self.url = URL.format(port=port)
        self._passwords = passwords

    async def bus(self, user: str) -> Bus:
        return await Bus.connect(
            self.url,
            user=user,
            password=self._passwords[user],
            name=user,
            topology=TOPOLOGY,
            clock=SystemClock(),
            timeout_s=60.0,
        )

    async def user(self, name: str) -> User:
        user = User(name)
        await user.connect(self.url, password=self._passwords[name])
        return user


@pytest.fixture
async def empty_server(tmp_path: Path) -> AsyncIterator[Server]:
    port, passwords = free_port(), new_passwords()
    config = write_config(
        tmp_path / "nats.conf",
        port,
        passwords=passwords,
        run_id=RUN,
        store=tmp_path / "nats",
        monitor_port=free_port(),
    )
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(find_server()), "--config", str(config), stdout=log, stderr=log
        )
    try:
        await wait_ready(BrokerEndpoint(port), timeout_s=120.0)
        yield Server(port, passwords)
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture
async def server(empty_server: Server) -> Server:
    bus = await empty_server.bus("bootstrap")
    await bus.bootstrap(STREAMS, consumers=CONSUMERS)
    await bus.close()
    return empty_server


@pytest.mark.parametrize("name", USERS)
async def test_user_may_publish_follow_and_ask_what_the_table_says_and_nothing_else(
    server: Server, name: str
) -> None:
    await table.check_permissions(await server.user(name))


async def test_streams_cannot_be_emptied_sealed_copied_or_republished_by_an_actor(server: Server) -> None:
    actor, writer = await server.user("actor"), await server.bus("actor")
    for number in range(NUM_MESSAGES):
        await writer.publish(TOPOLOGY.trajectories(0), b"work", message_id=f"m{number}")
    configs: dict[str, dict[str, Any]] = {}
    for spec in STREAMS:
        configs[spec.name] = (await actor.ask(f"$JS.API.STREAM.INFO.{spec.name}", {}))["config"]
    policy, progress = TOPOLOGY.stream("POLICY"), TOPOLOGY.stream("PROGRESS")
    copied = {
        "name": progress,
        "subject_transforms": [{"src": f"tg.{RUN}.part.x", "dest": f"tg.{RUN}.ver.default"}],
    }
    changes: tuple[tuple[str, dict[str, Any]], ...] = (
        ("TRAJECTORIES", {"max_age": 100_000_000}),
        ("TASKS", {"sealed": True}),
        ("POLICY", {"sources": [copied]}),
        ("PROGRESS", {"republish": {"src": f"tg.{RUN}.part.*", "dest": f"tg.{RUN}.ctl.task_queue"}}),
        ("QUARANTINE", {"max_msgs": 1}),
    )
    for kind, change in changes:
        name = TOPOLOGY.stream(kind)
        for call in ("UPDATE", "CREATE"):
            assert await actor.ask(f"$JS.API.STREAM.{call}.{name}", {**configs[name], **change}) == {}, kind
    for name, config in configs.items():
        assert (await actor.ask(f"$JS.API.STREAM.INFO.{name}", {}))["config"] == config
    assert (await writer.stream_state(TOPOLOGY.stream("TRAJECTORIES"))).messages == NUM_MESSAGES
    assert (await writer.stream_state(policy)).messages == 0
    await writer.close()
    await actor.close()


async def test_actor_cannot_fill_a_work_queue_with_what_no_consumer_reads(server: Server) -> None:
    bus = await server.bus("actor")
    for subject in (TOPOLOGY.trajectories(1), TOPOLOGY.rollouts("another"), TOPOLOGY.tasks("another")):
        await bus.publish_core(subject, b"filler")
    # On the same connection, so that the broker took the others before.
    for subject in (TOPOLOGY.trajectories(0), TOPOLOGY.rollouts(ENVIRONMENT)):
        await bus.publish(subject, b"work", message_id=subject)
    for kind, messages in (("TASKS", 0), ("ROLLOUTS", 1), ("TRAJECTORIES", 1)):
        assert (await bus.stream_state(TOPOLOGY.stream(kind))).last_sequence == messages, kind
    await bus.close()


async def test_stream_of_an_older_run_keeps_its_messages_and_takes_no_other_subjects_any_more(
    empty_server: Server,
) -> None:
    bus, actor = await empty_server.bus("bootstrap"), await empty_server.bus("actor")
    older = [
        msgspec.structs.replace(spec, subjects=(f"{spec.subjects[0].rpartition('.')[0]}.*",))
        for spec in STREAMS
    ]
    await bus.bootstrap(older)
    await actor.publish(TOPOLOGY.rollouts(ENVIRONMENT), b"work", message_id="m")
    # A service of the new version may be there before the streams are updated.
    await actor.await_streams(STREAMS, timeout_s=60.0)
    await bus.bootstrap(STREAMS, consumers=CONSUMERS)
    await actor.publish_core(TOPOLOGY.rollouts("another"), b"filler")
    await actor.publish(TOPOLOGY.rollouts(ENVIRONMENT), b"more work", message_id="n")
    assert (await actor.stream_state(TOPOLOGY.stream("ROLLOUTS"))).last_sequence == 2
    environment = await empty_server.bus("environment")
    reader = await environment.consumer(CONSUMERS[1].durable)
    bodies = [delivery.data for _ in range(2) for delivery in await reader.fetch(1, wait_s=60.0)]
    assert bodies == [b"work", b"more work"]
    for each in (reader, bus, actor, environment):
        await each.close()


async def test_stream_of_other_subjects_than_an_older_runs_is_refused(empty_server: Server) -> None:
    bus, tasks = await empty_server.bus("bootstrap"), STREAMS[0]
    more = msgspec.structs.replace(tasks, subjects=(*tasks.subjects, TOPOLOGY.tasks("another")))
    await bus.bootstrap([more])
    with pytest.raises(StaleFolderError, match="another shape"):
        await bus.await_streams([tasks], timeout_s=60.0)
    with pytest.raises(StaleFolderError, match="another shape"):
        await bus.bootstrap([tasks])
    await bus.close()


async def test_actor_cannot_have_its_bytes_published_where_it_may_not_publish(server: Server) -> None:
    actor, bus, admission = (
        await server.user("actor"),
        await server.bus("actor"),
        await server.bus("admission"),
    )
    await bus.publish(TOPOLOGY.progress(TaskId("t1")), b"forged", message_id="1")
    progress, control = TOPOLOGY.stream("PROGRESS"), TOPOLOGY.control("task_queue")
    for call, body in (
        (f"$JS.API.DIRECT.GET.{progress}.{TOPOLOGY.progress(TaskId('t1'))}", b""),
        (
            f"$JS.API.DIRECT.GET.{progress}",
            b'{"last_by_subj": "%s"}' % TOPOLOGY.progress(TaskId("t1")).encode(),
        ),
        (f"$JS.API.STREAM.MSG.GET.{progress}", b'{"seq": 1}'),
    ):
        await actor.client.publish(call, body, reply=control)
    await actor.client.flush(timeout=60)
    stored = await admission.last(TOPOLOGY.stream("CONTROL"), control)
    assert stored is None or b"forged" not in stored.data
    for each in (bus, admission):
        await each.close()
    await actor.close()


async def test_admission_bounds_the_actors_consumer_and_cannot_have_it_delivered_elsewhere(
    server: Server,
) -> None:
    bus, user = await server.bus("admission"), await server.user("admission")
    tasks = CONSUMERS[0]
    await bus.set_max_ack_pending(tasks.durable, 7)
    stream, name = tasks.durable.stream, tasks.durable.name
    subject = f"$JS.API.CONSUMER.CREATE.{stream}.{name}.{tasks.filter_subject}"
    for change in (
        {"deliver_subject": TOPOLOGY.control("task_queue"), "max_waiting": 0},
        {"name": "spy", "durable_name": "spy"},
        {"filter_subject": TOPOLOGY.tasks("other")},
    ):
        info = await user.ask(f"$JS.API.CONSUMER.INFO.{stream}.{name}", {})
        assert info["config"]["max_ack_pending"] == 7
        answer = await user.ask(subject, {"stream_name": stream, "config": {**info["config"], **change}})
        assert "error" in answer, change
    [only] = await bus.consumers(stream)
    assert (only.durable, await bus.consumers(TOPOLOGY.stream("POLICY"))) == (name, [])
    await bus.close()
    await user.close()


async def test_services_wait_for_streams_and_consumers_that_only_the_bootstrap_user_creates(
    empty_server: Server,
) -> None:
    bus, bootstrap = await empty_server.bus("actor"), await empty_server.bus("bootstrap")
    with pytest.raises(UnavailableError, match="is not there"):
        await bus.await_streams(STREAMS, timeout_s=0.0)
    waiting = asyncio.create_task(bus.await_streams(STREAMS, timeout_s=600.0))
    await bootstrap.bootstrap(STREAMS)
    await waiting
    with pytest.raises(UnavailableError, match="is not there"):
        await bus.consumer(TOPOLOGY.task_durable(POOL), timeout_s=0.0)
    opening = asyncio.create_task(bus.consumer(TOPOLOGY.task_durable(POOL), timeout_s=600.0))
    await bootstrap.bootstrap((), consumers=CONSUMERS)
    await (await opening).close()
    changed = msgspec.structs.replace(STREAMS[0], retention="limits", discard="old")
    with pytest.raises(StaleFolderError):
        await bus.await_streams([changed], timeout_s=60.0)
    for each in (bus, bootstrap):
        await each.close()


async def test_bootstrap_changes_limits_and_refuses_what_would_lose_messages(server: Server) -> None:
    bus, queue = await server.bus("bootstrap"), await server.bus("task-queue")
    for number in range(4):
        await queue.publish(TOPOLOGY.tasks(POOL), b"task", message_id=f"t{number}")
    changed = TOPOLOGY.task_consumer(POOL, ack_wait_s=7.0, max_running=1)
    await bus.bootstrap(TOPOLOGY.streams(max_tasks=32, environment=ENVIRONMENT), consumers=[changed])
    user = await server.user("bootstrap")
    info = await user.ask(f"$JS.API.STREAM.INFO.{STREAMS[0].name}", {})
    assert (info["config"]["max_msgs"], info["state"]["messages"]) == (32, 4)
    name = f"{changed.durable.stream}.{changed.durable.name}"
    config = (await user.ask(f"$JS.API.CONSUMER.INFO.{name}", {}))["config"]
    assert (config["ack_wait"], config["max_ack_pending"]) == (7_000_000_000, 4), "the bound is admission's"
    with pytest.raises(StaleFolderError):
        await bus.bootstrap([msgspec.structs.replace(STREAMS[0], retention="limits", discard="old")])
    for each in (bus, queue):
        await each.close()
    await user.close()
