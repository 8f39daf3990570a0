"""A broker and some of the services of a run, without the rest: what the bench of one path needs."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from benchmarks.training_run import THREADS
from tidegate.core.errors import TidegateError, UnavailableError
from tidegate.core.ids import RunId
from tidegate.launch import broker as nats
from tidegate.launch.operator_credential import operator_token
from tidegate.launch.programs import ProcessSpec
from tidegate.launch.run_file import RunPlan, read_run_file
from tidegate.launch.run_folder import as_user, new_record, settings_of, write_passwords, write_record
from tidegate.launch.run_record import RunRecord
from tidegate.launch.streams import connect_and_create_streams
from tidegate.launch.supervisor import Supervisor
from tidegate.runtime.bus import Bus
from tidegate.runtime.call_credentials import FixedToken, derive_token
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.ports import pick_ports
from tidegate.runtime.rpc import open_channel
from tidegate.wire.call_permissions import Role
from tidegate.wire.clients.lifecycle import LifecycleClient
from tidegate.wire.permissions import BOOTSTRAP
from tidegate.wire.subjects import Topology

READY_TIMEOUT_S = 60.0
POLL_S = 0.05
STOP_GRACE_S = 15.0
# Whom a bench is at the broker: actors send what it sends.
USER = "actor"


@dataclass(frozen=True, slots=True)
class Stage:
    """What runs, and an actor's connection to its broker. ``supervisor`` may be given further processes.

    ``passwords``: of each user of the broker.
    """

    record: RunRecord
    plan: RunPlan
    folder: Path
    bus: Bus
    topology: Topology
    supervisor: Supervisor
    passwords: Mapping[str, str]

    def channel(self, service: str, *, role: Role) -> grpc.aio.Channel:
        """A channel to a service, with the credential of a role; the caller closes it."""
        token = FixedToken(derive_token(self.record.call_secret, role))
        return open_channel(self.record.addresses[service][0], token)


@asynccontextmanager
async def stage(
    run_file: Path, *, folder: Path, services: Sequence[str], overrides: Sequence[str] = ()
) -> AsyncGenerator[Stage, None]:
    """Start a broker and ``services`` of a run of its own in ``folder``; leaving stops them.

    Raises:
        ConfigError: the run file does not hold together.
        UnavailableError: one of them did not become ready.
    """
    plan = read_run_file(run_file, list(overrides))
    record = new_record(plan)
    passwords = nats.new_passwords()
    config = _write_folder(folder, record, passwords)
    supervisor = Supervisor()
    try:
        supervisor.start(nats.process(config, log=folder / "nats-server.log", environment={}))
        await nats.wait_ready(record.broker)
        topology = Topology(RunId(record.run_id))
        await connect_and_create_streams(
            settings_of(folder, as_user(record, BOOTSTRAP, passwords), plan.file),
            actor=plan.services["actor"],
            environment=plan.services["environment"],
        )
        bus = await Bus.connect(
            record.broker.url,
            user=USER,
            password=passwords[USER],
            name="bench",
            topology=topology,
            clock=SystemClock(),
        )
        for service in services:
            supervisor.start(service_process(service, folder=folder))
        for service in services:
            await _wait_ready(service, record, supervisor)
        yield Stage(record, plan, folder, bus, topology, supervisor, passwords)
        await bus.close()
        await supervisor.stop(list(services), grace_s=STOP_GRACE_S)
        await supervisor.stop([view.name for view in supervisor.view()], grace_s=STOP_GRACE_S)
    finally:
        supervisor.kill_all()


def _write_folder(folder: Path, record: RunRecord, passwords: Mapping[str, str]) -> Path:
    """What services and broker read when they start; returns the broker's configuration."""
    folder.mkdir(parents=True)
    write_record(folder, record)
    write_passwords(folder, passwords)
    [monitor_port] = pick_ports(1, taken=record.ports)
    return nats.write_config(
        folder / "nats-server.conf",
        record.broker.port,
        passwords=passwords,
        run_id=record.run_id,
        store=folder.resolve() / "nats",
        monitor_port=monitor_port,
    )


def service_process(service: str, *, folder: Path) -> ProcessSpec:
    """One service of a run folder, as the platform starts it."""
    command = [
        sys.executable,
        "-m",
        "tidegate.cli.main",
        "serve",
        service,
        "--run-dir",
        str(folder.resolve()),
    ]
    return ProcessSpec(service, command, folder / f"{service}.log", THREADS)


async def _wait_ready(service: str, record: RunRecord, supervisor: Supervisor) -> None:
    channel = open_channel(record.addresses[service][0], operator_token(record))
    client = LifecycleClient(channel, service=service)
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            while not await _is_ready(client):
                if supervisor.failure is not None:
                    raise supervisor.failure
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        raise UnavailableError(f"{service} did not become ready within {READY_TIMEOUT_S:g} s") from error
    finally:
        await channel.close()


async def _is_ready(client: LifecycleClient) -> bool:
    try:
        return (await client.stats(now_s=0.0)).state == "ready"
    except TidegateError:
        return False
