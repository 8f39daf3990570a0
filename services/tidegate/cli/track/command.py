"""``tidegate track``."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.run_argument import RunArgument, RunOption, named_run
from tidegate.cli.track.follow import TrackedRun
from tidegate.cli.track.registry import TRACKERS
from tidegate.core.errors import ConfigError
from tidegate.launch.local_files import require_local
from tidegate.launch.run_folder import find_folder, is_running, read_record

CURSOR_FILE = "tidegate-position.json"


def track(
    run: RunArgument = None,
    folder: RunOption = None,
    tracker: Annotated[str, typer.Option("--with", help=f"Tracker: {', '.join(TRACKERS)}.")] = "tensorboard",
    to: Annotated[
        Path, typer.Option("--to", help="Folder of the tracker's files; each run has one of its own in it.")
    ] = Path(".tidegate") / "tensorboard",
    period_s: Annotated[
        float, typer.Option("--every", help="Seconds between two looks at a running run.", min=0.1, max=600.0)
    ] = 2.0,
) -> None:
    """Write a run's curves, evaluations and objectives for an experiment tracker, until the run ends.

    Reads the run folder, live or ended, and changes nothing in it. Called again it goes on where it was.
    """
    where = find_folder(named_run(run, folder))
    record = require_local(read_record(where), otherwise="read its metrics from Prometheus")
    if tracker not in TRACKERS:
        raise ConfigError(f"There is no tracker {tracker!r}", fix=f"use {', '.join(TRACKERS)}")
    place = to / record.run_id
    place.mkdir(parents=True, exist_ok=True)
    opened = TRACKERS[tracker](place)
    try:
        follower = TrackedRun(where, opened, place / CURSOR_FILE)
        sent, goes_on = 0, True
        while goes_on:
            # What is written after the last look belongs to the run as well.
            goes_on = is_running(where)
            sent += follower.send_new()
            if goes_on:
                time.sleep(period_s)
    finally:
        opened.close()
    sys.stdout.write(f"{place}: {sent} updates\n")
