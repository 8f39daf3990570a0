"""Each service's permissions at the broker, on a real nats-server with the chart's configuration."""

import asyncio
import os
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import nats.errors
import pytest
from nats.aio.client import Client

from tests.chart.rendering import (
    WITH_INFERENCE,
    containers,
    named,
    needs_helm,
    of_kind,
    own_pods,
    pods,
    render,
)
from tests.support import broker_users as table
from tests.support.broker import free_port
from tests.support.broker_users import CONSUMERS, RUN, STREAMS, TOPOLOGY, USERS, User
from tests.support.certificates import make_identity, needs_openssl
from tidegate.cli.broker_passwords import (
    PASSWORDS_CONF,
    ROTATION_KEY,
    missing_passwords,
    passwords_file,
    variable_of,
)
from tidegate.core.errors import TidegateError, UnavailableError
from tidegate.launch.broker import find_server
from tidegate.runtime import changing_file
from tidegate.runtime.broker_password import BrokerPassword, broker_password
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.files import replace_file
from tidegate.runtime.tls import BROKER_FOLDER_VARIABLE
from tidegate.wire.permissions import permissions
from tidegate.wire.subjects import POOL

pytestmark = [pytest.mark.chart, needs_helm]

TASKS, ROLLOUTS, TRAJECTORIES = CONSUMERS
READERS = {"actor": TASKS, "environment": ROLLOUTS, "trajectory-store": TRAJECTORIES}


class Server:
    """A nats-server with the rendered configuration, on a free port of loopback."""

    def __init__(
        self,
        folder: Path,
        *,
        index: int = 0,
        routes: Sequence[int] = (),
        password: str = "",
        identity: Path | None = None,
        preset: str = "",
    ) -> None:
        """Start it; ``url`` answers soon.

        ``routes``: ports of all servers of a cluster, which share one password. ``identity``: with TLS, the folder of
        the server's certificate.
        """
        certified = {"tls.certManager.enabled": True} if identity is not None and not preset else {}
        objects = render(preset, {**WITH_INFERENCE, **({"nats.replicas": 3} if routes else {}), **certified})
        config = str(named(objects, "ConfigMap", "t-nats")["data"]["nats.conf"])
        if identity is not None:
            assert "/etc/nats-tls/tls.crt" in config
            config = config.replace("/etc/nats-tls", str(identity))
        port = free_port()
        if routes:
            assert '"0.0.0.0:6222"' in config
            config = config.replace('"0.0.0.0:6222"', f'"127.0.0.1:{routes[index]}"')
        for was, now in (
            ('"0.0.0.0:4222"', f'"127.0.0.1:{port}"'),
            ('http: "0.0.0.0:8222"', ""),
            ('"/data"', f'"{folder / "data"}"'),
            ('"../nats-users/passwords.conf"', '"passwords.conf"'),
            ('"/tmp/nats.pid"', f'"{folder / "nats.pid"}"'),
        ):
            assert was in config
            config = config.replace(was, now)
        (folder / "nats.conf").write_text(config, encoding="utf-8")
        container = containers(named(objects, "StatefulSet", "t-nats")["spec"]["template"])[0]
        self.passwords: dict[str, str] = {}
        self._folder, self._secret = folder, dict[str, str]()
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
        self._password = password
        self.rotate_passwords("first")
        self.url = f"{'nats' if identity is None else 'tls'}://127.0.0.1:{port}"
        self._variables = variables
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [str(find_server()), "--config", str(self._folder / "nats.conf")],
                env={**os.environ, **self._variables},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def restart_without_route_tls(self) -> None:
        """Start it again, once closed, as a server whose routes are in plain text."""
        path = self._folder / "nats.conf"
        config = path.read_text(encoding="utf-8")
        before, routes = config[: config.index("cluster {")], config[config.index("cluster {") :]
        plain = re.sub(r"  tls \{.*?\n  \}\n", "", routes, count=1, flags=re.DOTALL)
        assert plain != routes
        path.write_text(before + plain, encoding="utf-8")
        self._process = self._start()

    def rotate_passwords(self, rotation: str) -> None:
        """What the chart's Job writes, and the kubelet mounts; `reload` lets the server read it."""
        if self._password:
            self._secret |= dict.fromkeys(USERS, self._password)
        self._secret |= missing_passwords(self._secret, users=USERS, keys=(), rotation=rotation)
        self.passwords |= {user: self._secret[user] for user in USERS}
        replace_file(self._folder / "passwords.conf", self._secret[PASSWORDS_CONF].encode())

    def password_file(self, user: str) -> Path:
        """The file in the pods of a user."""
        path = self._folder / passwords_file(user)
        replace_file(path, self._secret[passwords_file(user)].encode())
        return path

    def reload(self) -> None:
        """Let it read its configuration again, as `nats-server --signal reload` does."""
        self._process.send_signal(signal.SIGHUP)

    def close(self) -> None:
        """Stop it."""
        self._process.terminate()
        self._process.wait(timeout=60)

    async def bus(self, user: str, *, password: BrokerPassword | None = None) -> Bus:
        """A service's connection to the broker; with the present password, or one that is rotated."""
        return await Bus.connect(
            self.url,
            user=user,
            password=password or self.passwords[user],
            name=user,
            topology=TOPOLOGY,
            clock=SystemClock(),
        )

    async def user(self, name: str) -> User:
        """A bare connection, for requests that no service sends."""
        user = User(name)
        await user.connect(self.url, password=self.passwords[name])
        return user


async def _ignore(_error: Exception) -> None:
    """Ignore errors: a refused client gets no connection."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    running = Server(tmp_path)
    try:
        bus = await running.bus("bootstrap")
        await bus.bootstrap(STREAMS, consumers=CONSUMERS)
        await bus.close()
        yield running
    finally:
        running.close()


def test_users_of_chart_and_laptop_have_the_same_permissions() -> None:
    config = str(named(render(values=WITH_INFERENCE), "ConfigMap", "t-nats")["data"]["nats.conf"])
    rendered: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for user, publish, subscribe in re.findall(
        r"user: ([a-z-]+), password: \$TG_\w+\s+permissions {\s+publish: { allow: \[(.*?)\] }\s+"
        r"subscribe: { allow: \[(.*?)\] }",
        config,
        re.DOTALL,
    ):
        rendered[user] = (tuple(re.findall('"(.*)"', publish)), tuple(re.findall('"(.*)"', subscribe)))
    assert rendered == {
        user: (allowed.of_run(RUN).publish, allowed.of_run(RUN).subscribe)
        for user, allowed in permissions().items()
    }


@pytest.mark.parametrize("name", USERS)
async def test_user_may_publish_follow_and_ask_what_the_table_says_and_nothing_else(
    server: Server, name: str
) -> None:
    await table.check_permissions(await server.user(name))


async def test_service_consumes_its_queue_from_delivery_to_ack(server: Server) -> None:
    for publisher, subject, reader in (
        ("task-queue", TOPOLOGY.tasks(POOL), "actor"),
        ("actor", TOPOLOGY.rollouts(table.ENVIRONMENT), "environment"),
        ("environment", TOPOLOGY.trajectories(0), "trajectory-store"),
    ):
        sender, receiver = await server.bus(publisher), await server.bus(reader)
        await sender.publish(subject, b"work", message_id=f"m-{reader}")
        consumer = await receiver.consumer(READERS[reader].durable)
        (delivery,) = await consumer.fetch(1, wait_s=5.0)
        await delivery.in_progress()
        await delivery.ack()
        await consumer.close()
        await receiver.close()
        stream = READERS[reader].durable.stream
        while (await sender.stream_state(stream)).messages:
            await asyncio.sleep(0.02)
        await sender.close()


async def test_admission_bounds_the_actors_consumer(server: Server) -> None:
    bus, user = await server.bus("admission"), await server.user("admission")
    await bus.set_max_ack_pending(TASKS.durable, 7)
    name = f"{TASKS.durable.stream}.{TASKS.durable.name}"
    answer = await user.ask(f"$JS.API.CONSUMER.INFO.{name}", {})
    assert answer["config"]["max_ack_pending"] == 7
    assert [each.durable for each in await bus.consumers(TASKS.durable.stream)] == [TASKS.durable.name]
    await user.close()
    await bus.close()


async def test_wrong_or_missing_password_is_refused(server: Server) -> None:
    for wrong in ({"user": "actor", "password": "p0"}, {"token": "p0"}, {}):
        client = Client()
        with pytest.raises((nats.errors.Error, OSError)):
            await client.connect(server.url, allow_reconnect=False, error_cb=_ignore, **cast("Any", wrong))


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


@needs_openssl
async def test_certified_broker_asks_for_a_certificate_and_a_password_and_reads_a_renewed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, renewed = make_identity(tmp_path / "own"), make_identity(tmp_path / "renewed")
    served = Path(shutil.copytree(own, tmp_path / "served"))
    server = Server(tmp_path, identity=served)
    try:
        monkeypatch.setenv(BROKER_FOLDER_VARIABLE, str(own))
        bus = await server.bus("bootstrap")
        await bus.bootstrap(STREAMS)
        with pytest.raises(UnavailableError):
            await connect(server, password="guess", timeout_s=1.0)
        monkeypatch.setenv(BROKER_FOLDER_VARIABLE, str(renewed))
        with pytest.raises(UnavailableError):
            await connect(server, password=server.passwords["actor"], timeout_s=1.0)
        shutil.copytree(renewed, served, dirs_exist_ok=True)
        server.reload()
        later = await connect(server, password=server.passwords["actor"], timeout_s=120.0)
        assert later.connected
        assert (bus.connected, bus.reconnects) == (True, 0), "open connections stay"
        await later.close()
        await bus.close()
    finally:
        server.close()


async def connect(server: Server, *, password: str, timeout_s: float) -> Bus:
    """An actor's connection."""
    return await Bus.connect(
        server.url,
        user="actor",
        password=password,
        name="actor",
        topology=TOPOLOGY,
        clock=SystemClock(),
        timeout_s=timeout_s,
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
        # A stream of three copies needs three servers that found each other.
        bus, user = await servers[0].bus("bootstrap"), await servers[0].user("bootstrap")
        made: dict[str, Any] = {}
        while "config" not in made:
            try:
                await bus.bootstrap(STREAMS[:1], copies=3)
            except TidegateError:
                await asyncio.sleep(0.1)
                continue
            made = await user.ask(f"$JS.API.STREAM.INFO.{STREAMS[0].name}", {})
        assert len(made["cluster"]["replicas"]) == 2
        await user.close()
        await bus.close()
    finally:
        for server in servers:
            server.close()


async def test_rotated_passwords_are_used_without_a_restart_of_broker_or_service(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing_file, "LOOK_PERIOD_S", 0.0)
    path = server.password_file("trajectory-store")
    bus = await server.bus("trajectory-store", password=broker_password("", str(path)))
    sender = await server.bus("actor")
    consumer = await bus.consumer(TRAJECTORIES.durable)
    await sender.publish(TOPOLOGY.trajectories(0), b"work", message_id="m")
    [held] = await consumer.fetch(1, wait_s=5.0)
    await sender.close()
    for rotation in ("second", "third"):
        reconnects = bus.reconnects
        server.rotate_passwords(rotation)
        server.reload()
        while bus.reconnects == reconnects:
            await asyncio.sleep(0.02)
        server.password_file("trajectory-store")
    await held.ack()
    stream = TRAJECTORIES.durable.stream
    while (await bus.stream_state(stream)).messages:
        await asyncio.sleep(0.02)
    await bus.close()


def test_credentials_job_creates_every_password_of_server_and_pods() -> None:
    objects = render()
    (job,) = (each for each in of_kind(objects, "Job") if "credentials" in each["metadata"]["name"])
    arguments = containers(job["spec"]["template"])[0]["args"]
    users, keys = (
        [word.removeprefix(option) for word in arguments if word.startswith(option)]
        for option in ("--user=", "--key=")
    )
    made = missing_passwords({}, users=users, keys=keys, rotation="")
    used = {
        item["key"]
        for _, pod in pods(objects)
        for volume in pod["spec"]["volumes"]
        if volume.get("secret", {}).get("secretName") == "t-nats-auth"
        for item in volume["secret"]["items"]
    }
    used |= {
        each["valueFrom"]["secretKeyRef"]["key"]
        for _, pod in pods(objects)
        for each in containers(pod)[0]["env"]
        if "secretKeyRef" in each.get("valueFrom", {})
    }
    assert used == set(made) - {*users, ROTATION_KEY}
    config = str(named(objects, "ConfigMap", "t-nats")["data"]["nats.conf"])
    assert {f"${variable_of(user)}" for user in users} | {"$TG_SYSTEM"} == set(
        re.findall(r"\$TG_\w+", config)
    )


def test_own_secret_of_the_broker_is_read_at_its_start() -> None:
    objects = render(values={"nats.auth.existingSecret": "mine"})
    assert "include" not in str(named(objects, "ConfigMap", "t-nats")["data"]["nats.conf"])
    server = containers(named(objects, "StatefulSet", "t-nats")["spec"]["template"])[0]
    keys = {
        each["valueFrom"]["secretKeyRef"]["key"]
        for each in server["env"]
        if "secretKeyRef" in each.get("valueFrom", {})
    }
    assert keys >= {"actor", "operator", "bootstrap", "routes", "system"}
    pod = own_pods(objects)["actor"]
    (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "broker")
    assert volume["secret"]["items"] == [{"key": "actor", "path": "password"}]
