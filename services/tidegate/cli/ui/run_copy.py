"""The folder of a run in a cluster, as the page reads it: copies of the records that its services stream.

Admission, learner, task queue and trajectory store are asked one beside the other, each again after a pause. A copy
becomes the file of the folder once it is whole. Which of them is old, and why, is in ``copies.json``.
"""

import asyncio
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import NoReturn

import grpc
import msgspec

from tidegate.admission.completion import FILE as COMPLETION_FILE
from tidegate.admission.state_file import StateFile
from tidegate.cli.ui.copies import COPIES_JSON, Copies
from tidegate.cli.up.summary import SUMMARY_JSON
from tidegate.core.completion import RunEnd
from tidegate.core.errors import RecordError, TidegateError
from tidegate.launch.run_folder import RUN_JSON, ProcessesRecord, lock, write_processes
from tidegate.launch.run_record import RunRecord
from tidegate.runtime.files import replace_file
from tidegate.task_queue.journal_file import FILE_NAME as JOURNAL_FILE
from tidegate.trajectory_store.schema import LEDGER_FILE
from tidegate.wire.clients.file_stream import FileStream
from tidegate.wire.clients.records import read_records
from tidegate.wire.snapshots import FileHeader

SERVICES = ("admission", "learner", "task_queue", "trajectory_store")
DATABASES = {JOURNAL_FILE, LEDGER_FILE}
# From the end of one copy to the next; a run that is complete changes no more, unless it gets another target.
PERIOD_S = 5.0
COMPLETE_PERIOD_S = 60.0
# Of the time, so that a large ledger is copied less often.
COPYING_SHARE_MAX = 0.05
# What a copy leaves on the disk.
FREE_BYTES_MIN = 16 << 20
FILES_MAX = 256
# The summary of a run that is complete.
END = {"ended_by": "target", "succeeded": True, "reached": True}


class RunCopy:
    """Follows a run from ``begin`` until ``follow`` is cancelled. On disk: each file, and one unfinished."""

    def __init__(
        self, record: RunRecord, folder: Path, *, target: str, channel_to: Callable[[str], grpc.aio.Channel]
    ) -> None:
        """``target``: of the run file. ``channel_to``: a service's, with the credential of the role ``ui``."""
        self._record = record
        self._folder = folder
        self._target = target
        self._channel_to = channel_to
        self._copies = Copies()
        self._end = StateFile(folder / "admission" / COMPLETION_FILE, RunEnd())
        self._is_complete = False

    def begin(self) -> None:
        """Make the folder, which is one of a running run as long as this process lives.

        Raises:
            FolderInUseError: another process follows a run into it.
            OSError: the disk refused.
        """
        for service in SERVICES:
            (self._folder / service).mkdir(parents=True, exist_ok=True)
        lock(self._folder)  # until this process ends
        # The page shows a folder: nothing of it asks services, and it needs none of the run's secrets.
        record = self._record.on_one_machine().without_secrets(broker_port=0)
        replace_file(self._folder / RUN_JSON, msgspec.json.encode(record))
        self._mark(complete=False)

    async def follow(self) -> NoReturn:
        """Copy until it is cancelled; a service that fails is asked again."""
        async with asyncio.TaskGroup() as group:
            for service in SERVICES:
                group.create_task(self._follow(service))
        raise AssertionError("no task of it ends")

    async def copy(self, service: str) -> None:
        """Ask one service for its records, once.

        Raises:
            RecordError: it sent what is no record of its own, or more than the disk takes.
            TidegateError: it refused, or did not answer in time.
            OSError, sqlite3.Error: the disk refused.
        """
        stream = read_records(self._channel_to(service), service=service)
        found = set[Path]()
        try:
            while (file := await stream.next_file()) is not None:
                path = self._folder / _own_path(service, file.path)
                _check_bounds(file, self._folder, num_files=len(found))
                await _replace(path, file, stream)
                found.add(path)
        finally:
            stream.close()
        for path in (self._folder / service).iterdir():
            if path not in found:  # of lines, an old file that was deleted
                path.unlink()
        if service == "admission":
            self._note_end()

    async def _follow(self, service: str) -> NoReturn:
        while True:
            started_s, problem = time.monotonic(), ""
            try:
                await self.copy(service)
            except (TidegateError, OSError, sqlite3.Error) as error:
                problem = str(error)
            self.note(service, problem)
            taken_s = time.monotonic() - started_s
            period_s = COMPLETE_PERIOD_S if self._is_complete else PERIOD_S
            await asyncio.sleep(max(period_s, taken_s * (1 / COPYING_SHARE_MAX - 1)))

    def note(self, service: str, problem: str) -> None:
        """Record the outcome of a copy; ``problem``: why it failed."""
        at_s, problems = dict(self._copies.at_s), dict(self._copies.problems)
        problems.pop(service, None)
        if not problem:
            at_s[service] = time.time()
        elif not (self._is_complete and service == "learner"):  # its pod is gone with the end of the run
            problems[service] = problem
        self._copies = Copies(at_s, problems)
        replace_file(self._folder / COPIES_JSON, msgspec.json.encode(self._copies))

    def _note_end(self) -> None:
        end = self._end.read()
        complete = bool(end.target) and end.checkpointed
        if complete != self._is_complete:
            self._mark(complete=complete)

    def _mark(self, *, complete: bool) -> None:
        """As a supervisor leaves the folder of a run that works, or of one that reached its target."""
        if complete:
            replace_file(self._folder / SUMMARY_JSON, msgspec.json.encode(END))
        else:
            (self._folder / SUMMARY_JSON).unlink(missing_ok=True)
        processes = ProcessesRecord(os.getpid(), self._record.created_at_s, complete, {}, self._target)
        write_processes(self._folder, processes)
        self._is_complete = complete


def _own_path(service: str, path: str) -> PurePosixPath:
    """Where a service's file goes.

    Raises:
        RecordError: it is no file of the service's own folder.
    """
    wanted = PurePosixPath(path)
    if len(wanted.parts) != 2 or wanted.parts[0] != service or wanted.name.startswith("."):
        raise RecordError(f"{service} sent {path}", why="this file is not its own")
    return wanted


def _check_bounds(file: FileHeader, folder: Path, *, num_files: int) -> None:
    free = shutil.disk_usage(folder).free
    if file.size > free - FREE_BYTES_MIN:
        raise RecordError(
            f"{file.path} does not fit on the disk of the page",
            why=f"it has {file.size / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free",
            fix="free space on the node of its pod",
        )
    if num_files == FILES_MAX:
        raise RecordError(f"A service sent more than {FILES_MAX} files", why="it runs another version")


async def _replace(path: Path, file: FileHeader, stream: FileStream[FileHeader | bytes]) -> None:
    unfinished = path.with_name(f".{path.name}.new")
    with unfinished.open("wb") as copy:
        async for chunk in stream.bytes_of(file):
            copy.write(chunk)
    if path.name in DATABASES:
        await asyncio.to_thread(_end_log, unfinished)
    unfinished.replace(path)


def _end_log(copied: Path) -> None:
    """Make a copied database one without a write-ahead log, of which readers would leave files beside the next copy."""
    with closing(sqlite3.connect(copied)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
