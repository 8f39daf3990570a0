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
import sqlite3
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec
import yaml

from tidegate.core.errors import ConfigError, NotFoundError, TidegateError, UnavailableError
from tidegate.core.ids import PolicyVersion, parse_version, position_of, trajectory_at
from tidegate.core.replay import surviving_steps
from tidegate.launch.backup.manifest import BackupCounts
from tidegate.launch.broker import BrokerEndpoint
from tidegate.launch.carried_files import files_of
from tidegate.launch.forking import CHECKPOINTS, RUN_YAML
from tidegate.launch.own_code import OWN_CODE_JSON
from tidegate.launch.run_folder import RUN_JSON, read_plan
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.run_record import RunRecord
from tidegate.learner.checkpoint import checkpoints_in
from tidegate.runtime.backup_state import NoSpaceError
from tidegate.runtime.best_version import BEST_FILE, read_best
from tidegate.task_queue import journal_file, packed_tasks
from tidegate.task_queue.journal_file import FILE_NAME as JOURNAL_FILE
from tidegate.task_queue.state import TrajectoryState
from tidegate.trajectory_store import schema
from tidegate.trajectory_store.memory import load_tree
from tidegate.trajectory_store.schema import LEDGER_FILE
from tidegate.weight_distribution.reading import VersionsOnDisk

LEDGER = f"trajectory_store/{LEDGER_FILE}"
JOURNAL = f"task_queue/{JOURNAL_FILE}"
VERSIONS = "weight_distribution/versions"
# Of the user: own code and prompts that the run file names.
USER_FILES = "files"
# Small or growing files that a run, its report or its receipt reads again; those that are not there are left out.
OTHERS = (
    "summary.json",
    "events.jsonl*",
    "data/*",
    "learner/environment.json",
    "learner/steps.jsonl*",
    "admission/slos.json",
    "admission/slo_events.jsonl*",
    "admission/stats.jsonl*",
)
# An arrival between two reads of microseconds is rare, twenty in a row are not chance.
PAIR_ATTEMPTS = 20
PAIR_PAUSE_S = 0.05
# What is left to the run while the two databases are copied on its disk.
FREE_BYTES_MIN = 64 << 20


class NoCheckpointError(NotFoundError):
    """The run has no state yet from which it could go on."""


class SnapshotFile(msgspec.Struct, frozen=True, eq=False):
    """An open file, of which the first ``size`` bytes do not change any more; ``path``: in the run folder."""

    path: str
    file: BinaryIO
    size: int


class FolderSnapshot(msgspec.Struct, frozen=True, eq=False):
    """See the module. ``left_out``: what the run needs besides these files, in words."""

    run_id: str
    made_at_s: float
    version: PolicyVersion
    counts: BackupCounts
    files: tuple[SnapshotFile, ...]
    left_out: tuple[str, ...]


@contextmanager
def snapshot_of(folder: Path, *, staging: Path) -> Generator[FolderSnapshot]:
    """The run in ``folder``, live or ended; its files are open as long as the block.

    ``staging``: a folder on the same disk for the copies of the databases, which is emptied before and after.

    Raises:
        NoCheckpointError: the run has no checkpoint yet, or no ledger or journal.
        CorruptionError: one of them cannot be read.
        UnavailableError: the disk has too little space, or the two could not be read at one moment.
    """
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(mode=0o700)
    with ExitStack() as opened:
        opened.callback(shutil.rmtree, staging, ignore_errors=True)
        record, plan = read_plan(folder)
        files = _Files(folder, opened)
        _add_best(files)
        version = _add_checkpoint(files)
        made_at_s = time.time()
        counts = _copy_databases(folder, staging, version)
        files.add(staging / LEDGER_FILE, as_path=LEDGER)
        files.add(staging / JOURNAL_FILE, as_path=JOURNAL)
        for pattern in OTHERS:
            for path in sorted(folder.glob(pattern)):
                files.add(path)
        left_out = _add_run_file(files, record, plan, staging)
        yield FolderSnapshot(record.run_id, made_at_s, version, counts, tuple(files.found), left_out)


class _Files:
    """Opens files as they are found, and closes them with the snapshot."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self.folder = folder
        self.found: list[SnapshotFile] = []
        self._opened = opened

    def add(self, path: Path, *, as_path: str = "") -> bool:
        """Whether it was there."""
        try:
            file = self._opened.enter_context(path.open("rb"))
        except (FileNotFoundError, IsADirectoryError):
            return False
        name = as_path or path.relative_to(self.folder).as_posix()
        self.found.append(SnapshotFile(name, file, file.seek(0, 2)))
        return True


def _add_checkpoint(files: _Files) -> PolicyVersion:
    """The newest checkpoint that is still there when its files are opened."""
    directory = files.folder / CHECKPOINTS
    for path, version in reversed((checkpoints_in(directory) if directory.is_dir() else {}).items()):
        before = len(files.found)
        try:
            names = sorted(path.iterdir())
        except FileNotFoundError:  # deleted meanwhile; a newer one is there
            continue
        if names and all(files.add(name) for name in names):
            return version
        del files.found[before:]
    raise NoCheckpointError(
        f"{files.folder} has no checkpoint yet",
        why="a backup is of a state from which the run can go on",
        fix="wait: the learner writes one before its first update",
    )


def _add_best(files: _Files) -> None:
    """The best version, with each file that holds tensors of it; without it where one of them is gone."""
    place = files.folder / "weight_distribution"
    best = read_best(place)
    if best is None:
        return
    before = len(files.found)
    try:
        paths = VersionsOnDisk(files.folder / VERSIONS).files_of(parse_version(best.version))
    except ValueError:
        return
    if not (paths and files.add(place / BEST_FILE) and all(files.add(path) for path in paths)):
        del files.found[before:]


def _copy_databases(folder: Path, staging: Path, version: PolicyVersion) -> BackupCounts:
    ledger_path, journal_path = folder / LEDGER, folder / JOURNAL
    for path in (ledger_path, journal_path):
        if not path.is_file():
            raise NoCheckpointError(f"There is no {path}", fix="wait until the run has started")
    needed = sum(path.stat().st_size for path in (ledger_path, journal_path)) + FREE_BYTES_MIN
    free = shutil.disk_usage(staging).free
    if free < needed:
        raise NoSpaceError(
            f"The disk of {folder} has too little space for a backup",
            why=f"copies of ledger and journal need {needed / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB are free",
            fix="free space; the run goes on, and so does the backup once there is space",
        )
    for _ in range(PAIR_ATTEMPTS):
        with _one_moment(ledger_path, journal_path) as pair:
            if pair is not None:
                ledger, journal = pair
                counts = _counts(ledger, journal, version)
                for source, name in ((journal, JOURNAL_FILE), (ledger, LEDGER_FILE)):
                    _copy(source, staging / name)
                return counts
        time.sleep(PAIR_PAUSE_S)
    raise UnavailableError(
        f"Ledger and journal of {folder} were not seen at one moment, {PAIR_ATTEMPTS} times",
        fix="try it again",
    )


def _copy(source: sqlite3.Connection, path: Path) -> None:
    try:
        with closing(sqlite3.connect(path)) as copy:
            source.backup(copy)
    except sqlite3.OperationalError as error:  # a damaged page is another error
        raise NoSpaceError(
            f"{path.name} could not be copied for a backup",
            why=str(error),
            fix="free space on the disk of the run; the run goes on, and so does the backup once there is space",
        ) from error


@contextmanager
def _one_moment(
    ledger_path: Path, journal_path: Path
) -> Generator[tuple[sqlite3.Connection, sqlite3.Connection] | None]:
    """Both databases, of which the journal has admitted every trajectory of the ledger; None where it has not."""
    with schema.reading(ledger_path) as before:
        newest = journal_file.scalar(before, "SELECT coalesce(max(seq), 0) FROM trajectories")
    with journal_file.reading(journal_path) as journal:
        num_admitted = journal_file.next_seq(journal)  # its snapshot begins here
        with schema.reading(ledger_path) as ledger:
            since = ledger.execute("SELECT trajectory_id FROM trajectories WHERE seq > ?", (newest,))
            places = (position_of(name) for (name,) in since)
            is_ahead = any(place is not None and place[0] >= num_admitted for place in places)
            yield None if is_ahead else (ledger, journal)


def _counts(ledger: sqlite3.Connection, journal: sqlite3.Connection, version: PolicyVersion) -> BackupCounts:
    states = dict(ledger.execute("SELECT state, count(*) FROM trajectories GROUP BY state").fetchall())
    admitted = journal_file.count_rows(journal).plus(packed_tasks.count_columns(journal))
    # The journal may not have heard of all that arrived. At most ``max_running``.
    running = journal.execute(
        f"SELECT seq, sample_index FROM trajectories WHERE state = {int(TrajectoryState.ADMITTED)}"
    )
    in_flight = sum(
        not ledger.execute(
            "SELECT 1 FROM trajectories WHERE trajectory_id = ?", (trajectory_at(*place),)
        ).fetchone()
        for place in running
    )
    return BackupCounts(
        admitted=admitted.admitted,
        trained=states.get("trained", 0),
        beyond_checkpoint=trained_beyond(ledger, version)[0],
        waiting=states.get("available", 0) + states.get("leased", 0),
        in_flight=in_flight,
    )


def trained_beyond(ledger: sqlite3.Connection, version: PolicyVersion) -> tuple[int, int]:
    """Trajectories that the ledger has trained and a checkpoint of ``version`` does not hold, and their updates."""
    tree = load_tree(ledger)
    surviving = surviving_steps(version, tree) if version.lineage in tree.lineages else {}
    counts = [
        ledger.execute(
            "SELECT count(*), count(DISTINCT trained_step) FROM trajectories"
            " WHERE trained_lineage = ? AND trained_step >= ?",
            (name, surviving.get(name, 0)),
        ).fetchone()
        for name in tree.lineages
    ]
    return sum(num for num, _ in counts), sum(updates for _, updates in counts)


def _add_run_file(files: _Files, record: RunRecord, plan: RunPlan, staging: Path) -> tuple[str, ...]:
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
    # Calls and tasks get new secrets at the next start, and nothing is in flight that the old ones signed.
    public = msgspec.structs.replace(
        record,
        call_secret="",
        task_secret="",
        broker=BrokerEndpoint(port=record.broker.port),
        run_file=document,
    )
    for name, data in (
        (RUN_JSON, msgspec.json.encode(public)),
        (RUN_YAML, yaml.safe_dump(document, sort_keys=False).encode()),
    ):
        (staging / name).write_bytes(data)
        files.add(staging / name, as_path=name)
    return tuple(left_out)


def parts_of(file: SnapshotFile, part_bytes: int) -> Iterator[bytes]:
    """Its content in parts, all but the last of ``part_bytes``.

    Raises:
        TidegateError: it became shorter than it was.
    """
    file.file.seek(0)
    left = file.size
    while left:
        data = file.file.read(min(part_bytes, left))
        if not data:
            raise TidegateError(f"{file.path} became shorter while it was copied")
        left -= len(data)
        yield data
