"""``tidegate streams``: create or update the streams of a run in a cluster, as the one user of the broker that may."""

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tidegate.launch.cluster import BROKER_WAIT_S, RUN_FILE, password_path
from tidegate.launch.run_folder import read_record, settings_of
from tidegate.launch.run_parsing import parse_section, parse_shared
from tidegate.launch.streams import connect_and_create_streams


def streams(
    cluster: Annotated[Path, typer.Option(help="Folder with run.yaml and cluster.yaml.")],
) -> None:
    """Create or update the streams and consumers of a run; repeating it changes nothing. Run by the chart's Job.

    Limits, copies and times change in place. A change that would lose messages is refused.
    """
    record = read_record(cluster)
    source = str(cluster / RUN_FILE)
    file = parse_shared(record.run_file, source=source)
    actor, _ = parse_section(record.run_file, "actor", source=source)
    environment, _ = parse_section(record.run_file, "environment", source=source)
    settings = msgspec.structs.replace(
        settings_of(cluster, record, file), broker_wait_s=BROKER_WAIT_S, broker_password_path=password_path()
    )
    asyncio.run(connect_and_create_streams(settings, actor=actor, environment=environment))
    typer.echo(f"{record.run_id}: streams and consumers are there")
