"""``tidegate backup-pods``: the container beside admission that makes the backups of a run in a cluster.

Its volume is admission's, so that ``backup.json`` is where admission and the commands look. It never ends by itself,
however a place or a service fails: a container that ends makes its pod unready, and the run needs admission. Where
admission has several pods, the container beside the leader works and the others stand by.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NoReturn

import structlog
import typer

from tidegate.admission.completion import FILE as COMPLETION_FILE
from tidegate.admission.kubernetes.access import LEADER_FILE, PODS
from tidegate.admission.state_file import StateFile
from tidegate.cli.backup.command import BACKOFF, LOOK_PERIOD_S, Backups
from tidegate.core.completion import RunEnd
from tidegate.core.errors import ConfigError, ConflictError, TidegateError
from tidegate.launch.backup.pods import pods_source
from tidegate.launch.backup.source import BackupSource
from tidegate.launch.cluster import RUN_FILE
from tidegate.launch.log_lines import log_json_lines
from tidegate.launch.operator_credential import pod_credentials
from tidegate.launch.run_folder import read_record
from tidegate.launch.run_parsing import parse_shared
from tidegate.launch.run_record import RunRecord
from tidegate.learner.snapshot import NoCheckpointError
from tidegate.runtime.backup_state import (
    BackupState,
    expect_backups,
    expect_no_backups,
    read_state,
    with_failure,
    write_state,
)
from tidegate.runtime.call_credentials import CallToken, find_token
from tidegate.runtime.companion_settings import BackupConfig
from tidegate.runtime.files import PRIVATE_UMASK
from tidegate.runtime.object_storage.place import ObjectPlace, open_place
from tidegate.runtime.object_storage.urls import below
from tidegate.runtime.rpc import open_channel
from tidegate.runtime.service import Channels

log = structlog.get_logger("backup")
SAID_AGAIN_S = 3600.0
# A pod that led before may finish one more backup until it learns that another one leads.
EARLIER_LEADER_S = 60.0


def backup_pods(
    cluster: Annotated[Path, typer.Option(help="Folder with run.yaml and cluster.yaml.")],
    data_dir: Annotated[Path, typer.Option(help="Admission's volume.")],
) -> None:
    """Copy a run in a cluster to object storage, as `backup` of its run file says, until stopped. Run by the chart.

    Nothing of the run waits for it. `tidegate restore` makes a run folder of a backup, `restore` of the chart's values
    the volumes of a release.
    """
    record = read_record(cluster)
    config = parse_shared(record.run_file, source=str(cluster / RUN_FILE)).backup
    if config is None:
        raise ConfigError("The run file has no `backup`", fix="set run.backup in the values of the chart")
    log_json_lines(service="backup", instance="backup", run=record.run_id)
    os.umask(PRIVATE_UMASK)
    asyncio.run(_until_stopped(_make_backups(record, config, data_dir)))


async def _make_backups(record: RunRecord, config: BackupConfig, data_dir: Path) -> None:
    url = below(config.to, record.run_id)
    has_others = bool(os.environ.get(PODS))
    if not has_others:
        expect_backups(data_dir, place=url, every_s=config.every_s, now_s=time.time())
    try:
        place = open_place(url, setting="backup.to")
        token = find_token(pod_credentials(), "backup")
    except TidegateError as error:
        write_state(data_dir, with_failure(read_state(data_dir) or BackupState(place=url), error))
        return await _wait_for_a_restart(error)
    backups = PodBackups(record, data_dir, place, keep=config.keep, every_s=config.every_s, token=token)
    await (backups.run_beside_leader() if has_others else backups.run())


async def _until_stopped(work: Coroutine[Any, Any, None]) -> None:
    running = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    # What was sent is used by the next process; the backup before stays in force.
    with suppress(asyncio.CancelledError):
        await running


class PodBackups:
    """Makes a backup every ``every_s``, and a last one when the run is complete."""

    def __init__(
        self,
        record: RunRecord,
        data_dir: Path,
        place: ObjectPlace,
        *,
        keep: int,
        every_s: float,
        token: CallToken,
    ) -> None:
        """``data_dir``: admission's volume. ``token``: of the role that may read snapshots."""
        self._record = record
        self._data_dir = data_dir
        self._place = place
        self._keep = keep
        self._every_s = every_s
        self._token = token
        self._end = StateFile(data_dir / "admission" / COMPLETION_FILE, RunEnd())
        self._backups = self._new_backups()

    def _new_backups(self) -> Backups:
        return Backups(
            self._data_dir,
            self._place,
            self._record.run_id,
            keep=self._keep,
            say=lambda line: log.info("backup", said=line),
            open_source=self._source,
        )

    async def run_beside_leader(self) -> None:
        """``run`` while the admission of this pod leads, until it is cancelled.

        What another pod wrote meanwhile is not a conflict: each time begins behind the newest backup of the place. One
        that the leader before finished after that is passed over; a second one stops the backups for good.
        """
        leads = self._data_dir / "admission" / LEADER_FILE
        working: asyncio.Future[None] | None = None
        # What this pod noted while it led, before it was restarted, is another one's by now.
        expect_no_backups(self._data_dir)
        try:
            while True:
                if leads.exists() and working is None:
                    log.info("backups_begin")
                    self._backups = self._new_backups()
                    working = asyncio.ensure_future(self.run(after_another=True))
                elif working is not None and not leads.exists():
                    await _cancelled(working)
                    working = None
                    expect_no_backups(self._data_dir)
                    log.info("backups_stand_by")
                await asyncio.sleep(LOOK_PERIOD_S)
        finally:
            if working is not None:
                await _cancelled(working)

    async def run(self, *, after_another: bool = False) -> None:
        """Until it is cancelled. ``after_another``: a pod that led before this one may still write a backup."""
        due_s, pauses_s, was_complete = 0.0, BACKOFF.pauses_s(), None
        while True:
            now_s, complete = time.monotonic(), self._is_complete()
            if complete != was_complete:
                self._expect(complete=complete)
                due_s, was_complete = now_s, complete
            if now_s >= due_s:
                try:
                    await self._backups.make()
                    if complete:
                        expect_no_backups(self._data_dir)
                    due_s = float("inf") if complete else now_s + self._every_s
                    pauses_s = BACKOFF.pauses_s()
                except NoCheckpointError:
                    due_s = time.monotonic() + BACKOFF.start_s
                except ConflictError as error:
                    self._backups.note(error)
                    if not after_another:
                        return await _wait_for_a_restart(error)
                    log.warning("backup_of_an_earlier_leader", error=str(error))
                    after_another, self._backups = False, self._new_backups()
                    due_s = time.monotonic() + EARLIER_LEADER_S
                except (TidegateError, OSError) as error:
                    self._backups.note(error)
                    due_s = time.monotonic() + next(pauses_s)
            await asyncio.sleep(LOOK_PERIOD_S)

    def _is_complete(self) -> bool:
        """Whether the learner has written its last checkpoint."""
        end = self._end.read()
        return bool(end.target) and end.checkpointed

    def _expect(self, *, complete: bool) -> None:
        if complete:
            expect_no_backups(self._data_dir, but_one=True)
            return
        expect_backups(self._data_dir, place=self._place.url, every_s=self._every_s, now_s=time.time())

    @asynccontextmanager
    async def _source(self) -> AsyncGenerator[BackupSource]:
        channels = Channels(self._record.addresses, open_channel=partial(open_channel, token=self._token))
        try:
            with TemporaryDirectory(prefix="tidegate-backup-") as staging:
                async with pods_source(
                    self._record, self._data_dir, staging=Path(staging), channel_to=channels.get
                ) as source:
                    yield source
        finally:
            await channels.close()


async def _cancelled(work: asyncio.Future[None]) -> None:
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def _wait_for_a_restart(error: TidegateError) -> NoReturn:
    """Only an operator helps: wrong settings, or another process that writes the backups of this run."""
    while True:
        log.error("backups_stopped", error=str(error), fix="set it right, then delete this pod")
        await asyncio.sleep(SAID_AGAIN_S)
