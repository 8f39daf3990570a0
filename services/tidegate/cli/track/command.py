"""``tidegate track``."""

import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from tidegate.cli.run_argument import RunArgument, RunOption, named_run
from tidegate.cli.track.follow import TrackedRun
from tidegate.cli.track.place import TrackedPlace
from tidegate.cli.track.port import Tracker
from tidegate.cli.track.registry import TRACKERS
from tidegate.cli.ui.copies import is_over
from tidegate.core.errors import ConfigError, UnavailableError
from tidegate.launch.local_files import require_local
from tidegate.launch.run_folder import find_folder, read_record
from tidegate.launch.supervised import await_folder
from tidegate.runtime.retrying import Backoff

CURSOR_FILE = "tidegate-position.json"
# How long a tracker that fails is tried again once the run is over.
LAST_TRIES_S = 10.0
# Between two looks at a run whose tracker fails.
BACKOFF_S_MAX = 60.0


def track(
    run: RunArgument = None,
    folder: RunOption = None,
    tracker: Annotated[str, typer.Option("--with", help=f"Tracker: {', '.join(TRACKERS)}.")] = "tensorboard",
    to: Annotated[
        str,
        typer.Option(
            "--to", help="Folder or address that the tracker writes to (default: .tidegate/TRACKER)."
        ),
    ] = "",
    period_s: Annotated[
        float, typer.Option("--every", help="Seconds between two looks at a running run.", min=0.1, max=600.0)
    ] = 2.0,
    stay: Annotated[
        bool,
        typer.Option(
            "--stay", help="Wait for the run, and after its end for another target. Set by the chart."
        ),
    ] = False,
) -> None:
    """Write a run's curves, samples, objectives and receipt for an experiment tracker, until the run ends.

    Reads the run folder, live or ended, and changes nothing in it. Called again it goes on where it was. A tracker that
    fails is tried again with a growing pause, while the run goes on and ten seconds longer.
    """
    named = named_run(run, folder)
    if stay:
        signal.signal(signal.SIGTERM, _end)
    if named is not None:
        await_folder(named, copied=stay)
    where = find_folder(named)
    record = require_local(read_record(where), otherwise="name it as run.track of the chart (docs/ui.md)")
    if tracker not in TRACKERS:
        raise ConfigError(f"There is no tracker {tracker!r}", fix=f"use {', '.join(TRACKERS)}")
    place = _place(record.run_id, to or f".tidegate/{tracker}", tracker)
    while True:
        opened = TRACKERS[tracker](place)
        try:
            sent = _follow(where, opened, place, tracker=tracker, period_s=period_s)
        except KeyboardInterrupt:
            with suppress(*opened.errors):
                opened.close("killed")
            raise
        sys.stdout.write(f"{to or place.to}: {sent} updates of {record.run_id}\n")
        if not stay:
            return
        while is_over(where):
            time.sleep(period_s)


def _follow(where: Path, opened: Tracker, place: TrackedPlace, *, tracker: str, period_s: float) -> int:
    """Send what the run writes until it is over; returns how many updates that were.

    Raises:
        UnavailableError: the tracker did not take everything.
    """
    follower = TrackedRun(where, opened, place.folder / CURSOR_FILE)
    backoff = Backoff(start_s=period_s, max_s=BACKOFF_S_MAX)
    sent, pauses_s, over_at_s = 0, backoff.pauses_s(), None
    while True:
        # What is written after the last look belongs to the run as well.
        over = is_over(where)
        if over and over_at_s is None:
            over_at_s = time.monotonic()
        try:
            sent += follower.send_new(now_s=time.time(), over=over)
            if over:
                opened.close(follower.ending())
                return sent
            pauses_s, pause_s = backoff.pauses_s(), period_s
        except opened.errors as error:
            if over_at_s is not None and time.monotonic() - over_at_s > LAST_TRIES_S:
                raise UnavailableError(
                    f"{tracker} did not take everything of run {place.run_id}",
                    why=f"{type(error).__name__}: {error}",
                    fix=f"track it again: `tidegate track {where} --with {tracker}` goes on at update"
                    f" {follower.last_step}",
                ) from error
            sys.stderr.write(
                f"tidegate: {tracker} failed and is tried again: {type(error).__name__}: {error}\n"
            )
            pause_s = next(pauses_s) if over_at_s is None else period_s
        time.sleep(pause_s)


def _end(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _place(run_id: str, to: str, tracker: str) -> TrackedPlace:
    """The place, with a folder of this run's own files: below ``to``, or beside the others of an address.

    Raises:
        ConfigError: the folder cannot be made.
    """
    base = Path(".tidegate") / tracker if "://" in to else Path(to)
    place = TrackedPlace(run_id=run_id, to=to, folder=base / run_id)
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{place.folder} cannot be made", why=str(error), fix="name another --to"
        ) from error
    return place
