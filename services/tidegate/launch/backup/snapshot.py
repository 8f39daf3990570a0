"""The state of a run at one moment, also while it trains: files that go on existing until they are copied.

The order makes the parts fit each other, whatever the services do meanwhile:

1. The best version and the newest checkpoint, opened: neither changes any more, and open files outlive a deletion.
2. Then the journal and the ledger, as of the same moment. So every update that the checkpoint holds is trained in the
   ledger or in the checkpoint's own list, and no lineage of a version is unknown to it. The journal is a little older
   than the ledger, and all the same has admitted each of its trajectories: it follows the rest of the outcomes as
   after a restart. The other way round it would wait for outcomes that the ledger never logs again, or give ids that
   the ledger has to new tasks.
3. Then files of lines, which only grow.

What is restored is thus a state in which a crash may leave a folder: at the checkpoint, without the payloads, whose
trajectories the store drops or revives and counts.
"""

import shutil
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tidegate.admission.snapshot import LINES as ADMISSION_LINES
from tidegate.core.errors import ConfigError, ConflictError, UnavailableError
from tidegate.core.ids import PolicyVersion
from tidegate.launch.backup.manifest import BackupCounts
from tidegate.launch.backup.source import BackupSource, FileParts
from tidegate.launch.carried_files import files_of
from tidegate.launch.forking import CHECKPOINTS, RUN_YAML
from tidegate.launch.own_code import OWN_CODE_JSON
from tidegate.launch.run_folder import RUN_JSON, read_plan
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.run_record import RunRecord
from tidegate.learner.snapshot import LINES, add_newest_checkpoint
from tidegate.runtime.object_storage.place import OBJECT_BYTES_MAX
from tidegate.runtime.snapshots.files import SnapshotFile, SnapshotFiles, parts_of
from tidegate.task_queue.journal_file import FILE_NAME as JOURNAL_FILE
from tidegate.task_queue.snapshot import journal_moment
from tidegate.trajectory_store.schema import LEDGER_FILE
from tidegate.trajectory_store.snapshot import ledger_moment
from tidegate.weight_distribution.snapshot import add_best
from tidegate.wire.snapshots import JournalMoment, LedgerMoment, SnapshotRequest

LEDGER = f"trajectory_store/{LEDGER_FILE}"
JOURNAL = f"task_queue/{JOURNAL_FILE}"
# Of the user: own code and prompts that the run file names.
USER_FILES = "files"
# Small or growing files that a run, its report or its receipt reads again; those that are not there are left out.
OTHERS = ("summary.json", "events.jsonl*")
# An arrival between two reads of microseconds is rare, twenty in a row are not chance.
PAIR_ATTEMPTS = 20
PAIR_PAUSE_S = 0.05


@asynccontextmanager
async def folder_source(folder: Path, *, staging: Path) -> AsyncGenerator[BackupSource]:
    """``snapshot_of``, as the writer of backups reads it."""
    with snapshot_of(folder, staging=staging) as found:
        yield found


class FolderSnapshot(msgspec.Struct, frozen=True, eq=False):
    """See the module. ``left_out``: what the run needs besides these files, in words."""

    run_id: str
    made_at_s: float
    version: PolicyVersion
    counts: BackupCounts
    found: tuple[SnapshotFile, ...]
    left_out: tuple[str, ...]

    async def files(self) -> AsyncIterator[FileParts]:
        """Each file with its parts."""
        for each in self.found:
            yield FileParts(each.path, each.size, file_parts(each))


async def file_parts(file: SnapshotFile) -> AsyncIterator[bytes]:
    """The parts of an open file, as objects have them."""
    for part in parts_of(file, OBJECT_BYTES_MAX):
        yield part


@contextmanager
def snapshot_of(folder: Path, *, staging: Path) -> Generator[FolderSnapshot]:
    """The run in ``folder``, live or ended; its files are open as long as the block.

    ``staging``: a folder on the same disk for the copies of the databases, which is emptied before and after.

    Raises:
        NotFoundError: the run has no checkpoint yet, or no ledger or journal.
        CorruptionError: one of them cannot be read.
        UnavailableError: the disk has too little space, or the two could not be read at one moment.
    """
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(mode=0o700)
    with ExitStack() as opened:
        opened.callback(shutil.rmtree, staging, ignore_errors=True)
        record, plan = read_plan(folder)
        files = SnapshotFiles(folder, staging=staging, opened=opened)
        add_best(files, folder / "weight_distribution")
        version = add_newest_checkpoint(files, folder / CHECKPOINTS)
        made_at_s = time.time()
        counts = _add_databases(files, version)
        files.add_found(*OTHERS, *LINES, *ADMISSION_LINES)
        left_out = add_run_file(files, record, plan)
        yield FolderSnapshot(record.run_id, made_at_s, version, counts, tuple(files.found), left_out)


def _add_databases(files: SnapshotFiles, version: PolicyVersion) -> BackupCounts:
    """Copies of both, of which the journal has admitted every trajectory of the ledger."""
    folder = files.folder
    for _ in range(PAIR_ATTEMPTS):
        with closing(journal_moment(SnapshotRequest(), files, path=folder / JOURNAL)) as journal:
            seen = next(journal).journal
            request = SnapshotRequest(checkpoint=version, journal=seen)
            with closing(ledger_moment(request, files, path=folder / LEDGER)) as ledger:
                try:
                    counts = counts_of(seen, next(ledger).ledger)
                except ConflictError:
                    time.sleep(PAIR_PAUSE_S)
                    continue
                _finish((journal, ledger))
                return counts
    raise not_seen_together(str(folder))


def _finish(moments: Iterable[Generator[object]]) -> None:
    for each in moments:
        for _ in each:
            pass


def not_seen_together(run: str) -> UnavailableError:
    """The error after the last attempt."""
    return UnavailableError(
        f"Ledger and journal of {run} were not seen at one moment, {PAIR_ATTEMPTS} times", fix="try it again"
    )


def counts_of(journal: JournalMoment | None, ledger: LedgerMoment | None) -> BackupCounts:
    """The counts of a backup, from what both owners said of their moments."""
    assert journal is not None
    assert ledger is not None
    return BackupCounts(
        admitted=journal.admitted,
        trained=ledger.trained,
        beyond_checkpoint=ledger.beyond_checkpoint,
        waiting=ledger.waiting,
        in_flight=ledger.in_flight,
    )


def add_run_file(files: SnapshotFiles, record: RunRecord, plan: RunPlan) -> tuple[str, ...]:
    """``run.json`` without its secrets, ``run.yaml`` to resume from, and the user's files that it names."""
    left_out = [
        f"{setting}: {place}"
        for setting, place in (
            ("policy.path", plan.file.policy.path if plan.file.policy.kind == "transformers" else ""),
        )
        if place
    ]
    try:
        named = files_of(plan)
    except ConfigError as error:
        named = {}
        left_out.append(str(error))
    for name, path in named.items():
        if not files.add(path, as_path=f"{USER_FILES}/{name}"):
            left_out.append(f"{path} is not there")
    # The policy that it began from is in its checkpoint.
    document = {**record.run_file, "files_dir": USER_FILES if named else "", "begin_from": ""}
    if not named:  # their digests by paths that another machine has not
        files.add(files.folder / OWN_CODE_JSON)
    add_record(files, record, document, nats_port=record.broker.port)
    return tuple(left_out)


def add_record(
    files: SnapshotFiles, record: RunRecord, document: Mapping[str, Any], *, nats_port: int
) -> None:
    """``run.json`` without its secrets, and ``run.yaml`` to resume from; ``document``: the run file in both."""
    # Nothing is in flight that the old secrets signed.
    public = msgspec.structs.replace(record.without_secrets(broker_port=nats_port), run_file=dict(document))
    for name, data in (
        (RUN_JSON, msgspec.json.encode(public)),
        (RUN_YAML, yaml.safe_dump(public.run_file, sort_keys=False).encode()),
    ):
        path = files.staging / name
        path.write_bytes(data)
        files.add(path, as_path=name)
