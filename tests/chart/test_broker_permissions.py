"""Each service's permissions at the broker, on a real nats-server with the chart's configuration."""

import asyncio
import contextlib
import os
import secrets
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client

from tests.chart.rendering import SERVICES, WITH_INFERENCE, containers, named, needs_helm, of_kind, render
from tests.support.broker import free_port
from tidegate.core.errors import TidegateError
from tidegate.core.ids import RunId, TaskId
from tidegate.launch.broker import find_server
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.wire.subjects import Topology

pytestmark = [pytest.mark.chart, needs_helm]

RUN = "cartpole-t"
TOPOLOGY = Topology(RunId(RUN))
STREAMS = TOPOLOGY.streams(max_tasks=16)
HEARD_TIMEOUT_S = 60.0
TASKS = TOPOLOGY.task_consumer("main", ack_wait_s=5.0, max_running=4)
ROLLOUTS = TOPOLOGY.rollout_consumer("e", ack_wait_s=5.0, max_running=4)
TRAJECTORIES = TOPOLOGY.trajectory_consumer(0)
# With the service that only some releases have.
USERS = (*SERVICES, "inference")
# Subjects of streams by their publishers, except those that every service may publish.
PUBLISHERS = {
    TOPOLOGY.tasks("main"): {"task-queue"},
    TOPOLOGY.rollouts("e"): {"actor"},
    TOPOLOGY.trajectories(0): {"actor", "environment"},
    TOPOLOGY.progress(TaskId("t1")): {"actor"},
    TOPOLOGY.policy("main"): {"weight-distribution"},
    TOPOLOGY.control("task_queue"): {"admission"},
    TOPOLOGY.event("slo"): set(USERS),
    TOPOLOGY.quarantine("x"): set(USERS),
}
CONSUMERS = {"actor": TASKS, "environment": ROLLOUTS, "trajectory-store": TRAJECTORIES}
LAST_OF = {
    ("POLICY", TOPOLOGY.policy("main")): {
        "task-queue",
        "actor",
        "trajectory-store",
        "learner",
        "weight-distribution",
        "admission",
        "inference",
    },
    ("CONTROL", TOPOLOGY.control("task_queue")): {"task-queue", "admission"},
    ("PROGRESS", TOPOLOGY.progress(TaskId("t1"))): {"actor"},
}


class Server:
    """A nats-server with the rendered configuration, on a free port of loopback."""

    def __init__(
        self, folder: Path, *, index: int = 0, routes: Sequence[int] = (), password: str = ""
    ) -> None:
        """Start it; ``url`` answers soon. ``routes``: ports of all servers of a cluster, which share one password."""
        objects = render(values={**WITH_INFERENCE, **({"nats.replicas": 3} if routes else {})})
        config = str(named(objects, "ConfigMap", "t-nats")["data"]["nats.conf"])
        port = free_port()
        if routes:
            assert '"0.0.0.0:6222"' in config
            config = config.replace('"0.0.0.0:6222"', f'"127.0.0.1:{routes[index]}"')
        for was, now in (
            ('"0.0.0.0:4222"', f'"127.0.0.1:{port}"'),
            ('http: "0.0.0.0:8222"', ""),
            ('"/data"', f'"{folder / "data"}"'),
            ('"/tmp/nats.pid"', f'"{folder / "nats.pid"}"'),
        ):
            assert was in config
            config = config.replace(was, now)
        (folder / "nats.conf").write_text(config, encoding="utf-8")
        container = containers(named(objects, "StatefulSet", "t-nats")["spec"]["template"])[0]
        self.passwords: dict[str, str] = {}
        variables = {"POD_NAME": f"t-nats-{index}"}
        for each in container["env"]:
            if "secretKeyRef" in each.get("valueFrom", {}):
                key = each["valueFrom"]["secretKeyRef"]["key"]
                variables[each["name"]] = self.passwords[key] = password or f"p{secrets.token_hex(8)}"
            elif "TG_ROUTES" in each.get("value", ""):
                # As the kubelet puts a variable into another, and the cluster's DNS knows the servers.
                number = int(each["name"].rpartition("_")[2])
                route = each["value"].replace("$(TG_ROUTES)", self.passwords["routes"])
                host = f"t-nats-{number}.t-nats-peers:6222"
                assert host in route
                variables[each["name"]] = route.replace(host, f"127.0.0.1:{routes[number]}")
        self.url = f"nats://127.0.0.1:{port}"
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [str(find_server()), "--config", str(folder / "nats.conf")],
            env={**os.environ, **variables},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def close(self) -> None:
        """Stop it."""
        self._process.terminate()
        self._process.wait(timeout=60)
        self._log.close()

    async def bus(self, user: str) -> Bus:
        """A service's connection to the broker."""
        return await Bus.connect(
            self.url,
            token="",
            user=user,
            password=self.passwords[user],
            name=user,
            topology=TOPOLOGY,
            clock=SystemClock(),
        )

    async def client(self, user: str) -> Client:
        """A bare connection, for requests that no service sends."""
        client = Client()
        await client.connect(
            self.url,
            user=user,
            password=self.passwords[user],
            inbox_prefix=f"_INBOX_{user}",
            error_cb=_ignore,
        )
        return client


async def _ignore(_error: Exception) -> None:
    """Ignore errors: a refused caller gets no answer."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    running = Server(tmp_path)
    try:
        bus = await running.bus("operator")
        await bus.bootstrap(STREAMS)
        for spec in CONSUMERS.values():
            await bus.consumer(spec)
        await bus.publish(TOPOLOGY.control("task_queue"), b"x", message_id="ctl")
        await bus.publish(TOPOLOGY.policy("main"), b"x", message_id="ver")
        await bus.publish(TOPOLOGY.progress(TaskId("t1")), b"x", message_id="part")
        await bus.close()
        yield running
    finally:
        running.close()


async def answered(client: Client, subject: str, body: bytes = b"") -> bool:
    """Whether JetStream answers at all: a client without permission gets no answer."""
    try:
        await client.request(subject, body, timeout=0.4)
    except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
        return False
    return True


async def test_every_service_bootstraps_with_its_own_password(server: Server) -> None:
    for service in USERS:
        bus = await server.bus(service)
        await bus.bootstrap(STREAMS)
        await bus.close()


async def test_services_make_the_streams_of_an_empty_broker(tmp_path: Path) -> None:
    running = Server(tmp_path)
    try:
        bus = await running.bus("actor")
        await bus.bootstrap(STREAMS)
        assert (await bus.stream_state(STREAMS[0].name)).messages == 0
        await bus.close()
    finally:
        running.close()


@pytest.mark.parametrize("service", USERS)
async def test_service_publishes_its_own_subjects_and_no_others(server: Server, service: str) -> None:
    client = await server.client(service)
    stream = cast("Any", client).jetstream(timeout=0.4)
    for subject, publishers in PUBLISHERS.items():
        if service in publishers:
            await stream.publish(subject, b"x")
        else:
            with pytest.raises((nats.errors.TimeoutError, nats.js.errors.NoStreamResponseError)):
                await stream.publish(subject, b"x")
    await client.close()


@pytest.mark.parametrize("service", USERS)
async def test_service_reads_its_own_queue_and_no_other(server: Server, service: str) -> None:
    client = await server.client(service)
    for reader, spec in CONSUMERS.items():
        ask = f"$JS.API.CONSUMER.MSG.NEXT.{spec.stream}.{spec.durable}"
        assert await answered(client, ask, b'{"batch":1,"no_wait":true}') == (reader == service), reader
    for (kind, subject), readers in LAST_OF.items():
        ask = f"$JS.API.DIRECT.GET.{TOPOLOGY.stream(kind)}.{subject}"
        assert await answered(client, ask) == (service in readers), subject
    await client.close()


DESTRUCTIVE = [
    *(
        (f"$JS.API.STREAM.{verb}.{spec.name}", b"{}")
        for spec in STREAMS
        for verb in ("MSG.DELETE", "PURGE", "SNAPSHOT", "DELETE")
    ),
    *((f"$JS.API.CONSUMER.DELETE.{spec.stream}.{spec.durable}", b"") for spec in CONSUMERS.values()),
    ("$JS.API.STREAM.CREATE.MINE", b'{"name":"MINE","subjects":["mine"]}'),
]


async def answers(client: Client) -> set[str]:
    """Which destructive requests got an answer, including errors; all are sent at once."""
    got = await asyncio.gather(*(answered(client, subject, body) for subject, body in DESTRUCTIVE))
    return {subject for (subject, _), answer in zip(DESTRUCTIVE, got, strict=True) if answer}


# The writer of a note on unfinished work clears it; a lost note costs only the work it saved.
CLEARED = {"actor": {f"$JS.API.STREAM.PURGE.{TOPOLOGY.stream('PROGRESS')}"}}


async def test_service_deletes_and_purges_nothing_but_its_notes(server: Server) -> None:
    for service in USERS:
        client = await server.client(service)
        assert await answers(client) == CLEARED.get(service, set()), service
        await client.close()
    operator = await server.client("operator")
    assert await answers(operator) == {subject for subject, _ in DESTRUCTIVE}
    await operator.close()


async def test_service_consumes_its_queue_from_delivery_to_ack(server: Server) -> None:
    for publisher, subject, reader in (
        ("task-queue", TOPOLOGY.tasks("main"), "actor"),
        ("actor", TOPOLOGY.rollouts("e"), "environment"),
        ("environment", TOPOLOGY.trajectories(0), "trajectory-store"),
    ):
        sender, receiver = await server.bus(publisher), await server.bus(reader)
        await sender.publish(subject, b"work", message_id=f"m-{reader}")
        consumer = await receiver.consumer(CONSUMERS[reader])
        (delivery,) = await consumer.fetch(1, wait_s=5.0)
        await delivery.in_progress()
        await delivery.ack()
        await consumer.close()
        await receiver.close()
        stream = CONSUMERS[reader].stream
        while (await sender.stream_state(stream)).messages:
            await asyncio.sleep(0.02)
        await sender.close()


async def test_admission_tunes_the_actors_consumer_and_reads_nothing_from_it(server: Server) -> None:
    bus = await server.bus("admission")
    await bus.set_max_ack_pending(TASKS.stream, TASKS.durable, 7)
    await bus.close()
    operator = await server.client("operator")
    info = await cast("Any", operator).jsm().consumer_info(TASKS.stream, TASKS.durable)
    assert info.config.max_ack_pending == 7
    await operator.close()


async def test_every_service_receives_statistics_and_none_receives_work(server: Server) -> None:
    operator = await server.client("operator")
    for service in USERS:
        client = await server.client(service)
        received: list[str] = []

        async def receive(message: Any, received: list[str] = received) -> None:
            received.append(message.subject)

        subscribe: Callable[..., Awaitable[Any]] = cast("Any", client).subscribe
        for subject in (TOPOLOGY.stats("*"), TOPOLOGY.tasks("*"), TOPOLOGY.trajectories(0), ">"):
            await subscribe(subject, cb=receive)
        await client.flush()
        await operator.publish(TOPOLOGY.tasks("main"), b"x")
        await operator.publish(TOPOLOGY.trajectories(0), b"x")
        # Statistics come again and again, as from a service: one message outside of a stream may be lost.
        async with asyncio.timeout(HEARD_TIMEOUT_S):
            while not received:
                await operator.publish(TOPOLOGY.stats("actor"), b"x")
                await operator.flush()
                await client.flush()
                await asyncio.sleep(0.01)
        assert set(received) == {TOPOLOGY.stats("actor")}, service
        await client.close()
    await operator.close()


async def test_wrong_or_missing_password_is_refused(server: Server) -> None:
    for wrong in ({"user": "actor", "password": "p0"}, {"token": "p0"}, {}):
        client = Client()
        with pytest.raises((nats.errors.Error, OSError)):
            await client.connect(server.url, allow_reconnect=False, error_cb=_ignore, **cast("Any", wrong))


async def receives(server: Server, user: str, subject: str) -> bool:
    """Whether a subscriber to ``subject`` receives messages published there, over half a second."""
    listener, operator = await server.client(user), await server.client("operator")
    received = asyncio.Event()

    async def receive(_message: object) -> None:
        received.set()

    try:
        await cast("Any", listener).subscribe(subject, cb=receive)  # typed in part
        for _ in range(10):
            await operator.publish(subject, b"x")
            await asyncio.sleep(0.05)
        return received.is_set()
    finally:
        await operator.close()
        await listener.close()


async def test_service_receives_no_answer_to_another(server: Server) -> None:
    assert await receives(server, "actor", "_INBOX_actor.x")
    assert not await receives(server, "actor", "_INBOX_learner.x")
    assert not await receives(server, "actor", "_INBOX.x")


async def test_one_service_cannot_be_another(server: Server) -> None:
    server.passwords["operator"] = server.passwords["actor"]
    client = Client()
    with pytest.raises((nats.errors.Error, TidegateError)):
        await client.connect(
            server.url,
            user="operator",
            password=server.passwords["actor"],
            allow_reconnect=False,
            error_cb=_ignore,
        )


def test_streams_are_synced_as_the_mode_defines() -> None:
    def config(values: dict[str, Any]) -> str:
        return str(named(render(values=values), "ConfigMap", "t-nats")["data"]["nats.conf"])

    assert 'sync_interval: "2m"' in config({})
    assert "sync_interval: always" in config({"nats.durability": "power"})


def test_three_servers_cluster_and_leave_in_lame_duck_mode() -> None:
    objects = render(values={"nats.replicas": 3})
    server = named(objects, "StatefulSet", "t-nats")
    variables = {each["name"]: each.get("value") for each in containers(server["spec"]["template"])[0]["env"]}
    for index in range(3):
        assert (
            variables[f"TG_ROUTE_{index}"] == f'"nats://routes:$(TG_ROUTES)@t-nats-{index}.t-nats-peers:6222"'
        )
    assert server["spec"]["replicas"] == 3
    hook = containers(server["spec"]["template"])[0]["lifecycle"]["preStop"]["exec"]["command"]
    assert hook == ["nats-server", "--signal", "ldm=/tmp/nats.pid"]
    assert "cluster {" not in str(named(render(), "ConfigMap", "t-nats")["data"]["nats.conf"])


async def test_three_servers_keep_three_copies(tmp_path: Path) -> None:
    routes = [free_port() for _ in range(3)]
    servers: list[Server] = []
    for index in range(3):
        folder = tmp_path / str(index)
        folder.mkdir()
        servers.append(Server(folder, index=index, routes=routes, password="p0"))
    try:
        # The server's own answer: a stream of three copies needs three servers that found each other.
        client = await servers[0].client("operator")
        manager = cast("Any", client).jsm(timeout=2.0)
        made: Any = None
        while made is None:
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                made = await manager.add_stream(name=STREAMS[0].name, subjects=["tg.x"], num_replicas=3)
            await asyncio.sleep(0.1)
        assert len(made.cluster.replicas) == 2
        await client.close()
    finally:
        for server in servers:
            server.close()


def test_credentials_job_creates_every_password_of_the_server() -> None:
    objects = render()
    (job,) = of_kind(objects, "Job")
    made = {
        word.removeprefix("--key=")
        for word in containers(job["spec"]["template"])[0]["args"]
        if "key" in word
    }
    used = {
        each["valueFrom"]["secretKeyRef"]["key"]
        for thing in of_kind(objects, "StatefulSet", "Deployment", "Pod")
        for each in containers(thing["spec"].get("template", thing))[0]["env"]
        if "secretKeyRef" in each.get("valueFrom", {})
    }
    assert used == made
