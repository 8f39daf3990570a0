"""``tidegate restore-volume``: the init container that fills a pod's volume from a backup before its service starts."""

import asyncio
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from tidegate.core.errors import ConfigError, StaleFolderError, TidegateError, UnavailableError
from tidegate.core.ids import RunId
from tidegate.launch.backup.volumes import (
    ON_VOLUMES,
    RestoreMark,
    fill,
    fill_from_newest,
    is_filled,
    is_lost,
    manifest_of,
)
from tidegate.launch.cluster import BROKER_WAIT_S, password_path
from tidegate.launch.run_folder import read_record
from tidegate.launch.run_record import RunRecord
from tidegate.learner.ranks.membership import pod_ordinal
from tidegate.runtime.broker_password import broker_password
from tidegate.runtime.bus import Bus
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.object_storage.place import open_place
from tidegate.runtime.object_storage.urls import below
from tidegate.runtime.rpc import HEALTH_LIVENESS, await_health
from tidegate.runtime.termination_message import write_termination_message
from tidegate.wire.subjects import Topology

# Whose volumes must be of one moment.
OF_ONE_MOMENT = ("task_queue", "trajectory_store")
STORE_WAIT_S = 1800.0
LOOK_PERIOD_S = 1.0


def restore_volume(
    service: Annotated[str, typer.Argument(help=f"Whose volume: {', '.join(ON_VOLUMES)}.")],
    place: Annotated[
        str, typer.Option("--from", help="Place of the backups: backup.to of the run that made them.")
    ],
    cluster: Annotated[Path, typer.Option(help="Folder with run.yaml and cluster.yaml.")],
    data_dir: Annotated[Path, typer.Option(help="The volume.")],
    number: Annotated[
        int | None, typer.Option(help="The backup; `tidegate restore PLACE --list` names them.", min=1)
    ] = None,
    if_lost: Annotated[
        bool,
        typer.Option(
            "--if-lost",
            help="The learner's volume, from the newest backup, if it is empty and the run began.",
        ),
    ] = False,
) -> None:
    """Fill the volume of a service from a backup, unless it is filled from it already. Run by the chart.

    One that holds anything else is refused. Task queue and trajectory store are filled only while the broker has seen
    no task of the run.
    """
    if service not in ON_VOLUMES:
        raise ConfigError(f"{service} has no volume to restore", fix=f"name one of {', '.join(ON_VOLUMES)}")
    if (number is None) != if_lost or (if_lost and service != "learner"):
        raise ConfigError(
            "A volume is filled from one backup, or the learner's from the newest",
            fix="give --number N, or for the learner --if-lost",
        )
    record = read_record(cluster)
    try:
        if number is None:
            asyncio.run(_restore_if_lost(place, record, data_dir))
        else:
            asyncio.run(_restore(service, place, number, record, data_dir))
    except TidegateError as error:
        write_termination_message(str(error))
        raise


async def _restore(service: str, place: str, number: int, record: RunRecord, data_dir: Path) -> None:
    url = below(place, record.run_id)
    if not is_filled(data_dir, RestoreMark(url, number)):
        opened = open_place(url, setting="restore.from")
        manifest = await manifest_of(opened, number, run_id=record.run_id)
        if service == "task_queue":
            await _await_store(record)  # whose volume is filled then, before the first task
        if service in OF_ONE_MOMENT:
            await _check_new_streams(record, service)
        await fill(opened, data_dir, manifest, service=service, say=typer.echo)


async def _restore_if_lost(place: str, record: RunRecord, data_dir: Path) -> None:
    """A new run has no backup, and what its place has of another one of this id is not its own."""
    if not is_lost(data_dir) or pod_ordinal(os.environ) > 0:  # other ranks than the first have no checkpoints
        return
    num_tasks = await _published_tasks(record, "learner")
    url = below(place, record.run_id)
    if num_tasks and not await fill_from_newest(
        open_place(url, setting="run.backup"),
        data_dir,
        service="learner",
        run_id=record.run_id,
        say=typer.echo,
    ):
        typer.echo(f"learner: the volume is empty, and {url} has no backup")


async def _check_new_streams(record: RunRecord, service: str) -> None:
    """Refuse a broker in which a task of this run was ever published.

    Raises:
        StaleFolderError: there was one.
        UnavailableError: the broker did not answer, or its streams are not there yet.
    """
    num_tasks = await _published_tasks(record, service)
    if num_tasks:
        raise StaleFolderError(
            f"The broker has had {num_tasks:,} tasks of the run {record.run_id}",
            why="messages of tasks that the backup does not know would be counted, or the run has already gone on from"
            " the backup and this volume alone was lost",
            fix="delete the claims of the broker and of all services, and install again",
        )


async def _published_tasks(record: RunRecord, service: str) -> int:
    """How many tasks of the run the broker has ever had.

    Raises:
        UnavailableError: the broker did not answer, or its streams are not there yet.
    """
    topology = Topology(RunId(record.run_id))
    bus = await Bus.connect(
        record.broker.url,
        user=record.broker.user,
        password=broker_password(record.broker.password, password_path()),
        name=f"tidegate-restore-{service}",
        topology=topology,
        clock=SystemClock(),
        timeout_s=BROKER_WAIT_S,
    )
    try:
        specs = [each for each in topology.streams(max_tasks=1) if each.name == topology.stream("TASKS")]
        await bus.await_streams(specs, timeout_s=BROKER_WAIT_S)
        state = await bus.stream_state(topology.stream("TASKS"))
    finally:
        await bus.close()
    return state.last_sequence


async def _await_store(record: RunRecord) -> None:
    """Return once the trajectory store serves.

    Raises:
        UnavailableError: it did not in time.
    """
    answer = await await_health(
        record.addresses["trajectory_store"][0],
        HEALTH_LIVENESS,
        deadline_s=time.monotonic() + STORE_WAIT_S,
        period_s=LOOK_PERIOD_S,
    )
    if answer:
        raise UnavailableError("The trajectory store does not serve", why=answer, fix="look at its pod")
