"""``tidegate backup``."""

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from tidegate.cli.run_argument import RunArgument, RunOption, named_run
from tidegate.core.errors import ConflictError, TidegateError, UnavailableError
from tidegate.launch.backup.snapshot import folder_source
from tidegate.launch.backup.source import BackupSource
from tidegate.launch.backup.writing import BackupWriter, WrittenBackup, open_writer
from tidegate.launch.local_files import require_local
from tidegate.launch.run_folder import find_folder, is_running, read_record
from tidegate.launch.supervised import await_folder, is_supervised
from tidegate.learner.snapshot import NoCheckpointError
from tidegate.runtime.backup_state import BackupState, expect_backups, read_state, with_failure, write_state
from tidegate.runtime.object_storage.place import ObjectPlace, open_place
from tidegate.runtime.object_storage.urls import below
from tidegate.runtime.retrying import Backoff

# In the run folder: copies of the databases while they are sent.
STAGING = ".backup"
LOOK_PERIOD_S = 1.0
# Between two tries while the place refuses or does not answer.
BACKOFF = Backoff(start_s=5.0, max_s=300.0)
LAST_PAUSE_S = 5.0
# How long a place that fails is tried again once the run is over.
LAST_TRIES_S = 60.0


def backup(
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Place: s3://bucket/prefix, gs://, az:// or file:///folder; the run has its own folder there.",
        ),
    ],
    run: RunArgument = None,
    folder: RunOption = None,
    every_s: Annotated[
        float,
        typer.Option("--every", help="Seconds between two backups of a running run.", min=1.0, max=604_800.0),
    ] = 600.0,
    keep: Annotated[int, typer.Option("--keep", help="Backups that stay in the place.", min=1, max=1000)] = 3,
    once: Annotated[bool, typer.Option("--once", help="Make one backup of a running run, and end.")] = False,
) -> None:
    """Copy a run to object storage: newest checkpoint, best version, ledger, journal and curves, until the run ends.

    Reads the run folder, live or ended; nothing of the run waits for it. What the place has already is not sent again,
    and a backup is in force once it is whole. `tidegate restore` makes a run folder of it.
    """
    named = named_run(run, folder)
    if named is not None:
        await_folder(named)
    where = find_folder(named)
    record = require_local(read_record(where), otherwise="set `backup` in its run file")
    place = open_place(below(to, record.run_id), setting="--to", makes_folder=True)
    asyncio.run(Backups(where, place, record.run_id, keep=keep).run(every_s=every_s, once=once))


class Backups:
    """Makes backups of one run, whose state is noted in a folder: ``run`` while it is supervised, and a last one."""

    def __init__(
        self,
        folder: Path,
        place: ObjectPlace,
        run_id: str,
        *,
        keep: int,
        say: Callable[[str], None] | None = None,
        open_source: Callable[[], AbstractAsyncContextManager[BackupSource]] | None = None,
    ) -> None:
        """``say``: takes a line for people. ``open_source``: the run's state now; by default the folder's."""
        self._folder = folder
        self._place = place
        self._run_id = run_id
        self._keep = keep
        self._say = say or _print_line
        self._open_source = open_source or partial(folder_source, folder, staging=folder / STAGING)
        self._writer: BackupWriter | None = None

    async def run(self, *, every_s: float, once: bool) -> None:
        """Until the run is over and its last backup is made.

        Raises:
            ConflictError: another process writes backups of this run to the place.
            NoCheckpointError: the run is over without a checkpoint.
            UnavailableError: the last backup could not be made.
        """
        if not once and is_supervised(self._folder):
            expect_backups(self._folder, place=self._place.url, every_s=every_s, now_s=time.time())
        due_s, pauses_s, over_at_s = 0.0, BACKOFF.pauses_s(), None
        while True:
            # What is written after this look belongs to the run as well.
            over = once or not (is_running(self._folder) or is_supervised(self._folder))
            now_s = time.monotonic()
            over_at_s = now_s if over and over_at_s is None else over_at_s
            if over or now_s >= due_s:
                try:
                    await self.make()
                    if over:
                        return
                    due_s, pauses_s = now_s + every_s, BACKOFF.pauses_s()
                except NoCheckpointError:
                    if over:
                        raise
                except ConflictError as error:
                    self.note(error)
                    raise
                except (TidegateError, OSError) as error:
                    self.note(error)
                    if over_at_s is not None and time.monotonic() - over_at_s > LAST_TRIES_S:
                        raise UnavailableError(
                            f"The last backup of run {self._run_id} was not made",
                            why=str(error),
                            fix=f"make it with `tidegate backup {self._folder} --to PLACE`; the one before is in force",
                        ) from error
                    due_s = time.monotonic() + next(pauses_s)
            await asyncio.sleep(LAST_PAUSE_S if over else LOOK_PERIOD_S)

    async def make(self) -> WrittenBackup:
        """Make one backup now.

        Raises:
            TidegateError: the run has no state to copy, or the place refused or did not answer.
        """
        started_s = time.monotonic()
        if self._writer is None:
            self._writer = await open_writer(self._place, run_id=self._run_id, keep=self._keep)
        async with self._open_source() as source:
            written = await self._writer.write(source)
        manifest, duration_s = written.manifest, time.monotonic() - started_s
        state = msgspec.structs.replace(
            self._state(),
            place=self._place.url,
            number=manifest.number,
            version=manifest.version,
            made_at_s=manifest.made_at_s,
            num_bytes=manifest.num_bytes(),
            bytes_uploaded=written.bytes_uploaded,
            problem=written.problem and f"older backups were not deleted: {written.problem}",
            duration_s=duration_s,
        )
        write_state(self._folder, state)
        self._say(
            f"backup {manifest.number} at version {manifest.version}: {manifest.num_bytes() / 1e6:,.1f} MB, of which"
            f" {written.bytes_uploaded / 1e6:,.1f} MB were sent in {duration_s:.1f} s"
        )
        if state.problem:
            self._say(state.problem)
        return written

    def note(self, error: TidegateError | OSError) -> None:
        """Keep why a try failed. The next one looks at the place again."""
        self._writer = None
        state = with_failure(self._state(), error)
        self._say(f"tidegate: {state.problem}")
        write_state(self._folder, state)

    def _state(self) -> BackupState:
        """What the folder says: also of a backup in another place, and of how often one is due."""
        return read_state(self._folder) or BackupState(place=self._place.url)


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
