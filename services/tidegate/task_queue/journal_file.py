"""The journal's file: its schema, how it is opened, and the small values beside the tables."""

import sqlite3
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from tidegate.core.curriculum import CurriculumState
from tidegate.core.errors import CorruptionError, StaleFolderError, UnavailableError
from tidegate.core.ids import RunId, TaskId, TrajectoryId, position_of, trajectory_at, trajectory_id
from tidegate.runtime.sqlite_errors import is_passing
from tidegate.runtime.sqlite_reading import connect_read_only
from tidegate.task_queue import packed_tasks
from tidegate.task_queue.packed_tasks import all_packed, content_of, packed_with
from tidegate.task_queue.state import Counts, TrajectoryState

SCHEMA_VERSION = 2
FILE_NAME = "journal.sqlite"

# A writer or a checkpoint of the write-ahead log holds its lock for milliseconds.
BUSY_TIMEOUT_S = 5.0

T = TypeVar("T")

# `spec` is the task's message, kept until the task arrived at the store: only until then can it be published again.
# The partial indexes hold only work in flight, so that queries for it do not grow with the run.
_SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """
    CREATE TABLE tasks (
        seq INTEGER PRIMARY KEY,
        task_id TEXT NOT NULL UNIQUE,
        kind TEXT NOT NULL,
        num_samples INTEGER NOT NULL,
        spec BLOB,
        admitted_at_s REAL NOT NULL,
        published INTEGER NOT NULL DEFAULT 0,
        attempt INTEGER NOT NULL DEFAULT 1
    )
    """,
    "CREATE INDEX tasks_unpublished ON tasks (seq) WHERE published = 0",
    f"""
    CREATE TABLE trajectories (
        seq INTEGER NOT NULL,
        sample_index INTEGER NOT NULL,
        state INTEGER NOT NULL DEFAULT {int(TrajectoryState.ADMITTED)},
        PRIMARY KEY (seq, sample_index)
    ) WITHOUT ROWID
    """,
    f"CREATE INDEX trajectories_open ON trajectories (seq) WHERE state <= {int(TrajectoryState.ACCEPTED)}",
    *packed_tasks.SCHEMA,
)


def connect_writer(path: Path, *, run_id: RunId) -> sqlite3.Connection:
    """Create the file of a run, or open it to go on.

    Raises:
        StaleFolderError: the file belongs to another run, or was written by another version.
        sqlite3.DatabaseError: the file is no journal.
    """
    db = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_S)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    if scalar(db, "SELECT count(*) FROM sqlite_master") == 0:
        db.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            db.execute(statement)
        write_meta(db, "run", run_id)
        write_meta(db, "schema", str(SCHEMA_VERSION))
        db.execute("COMMIT")
    owner, schema = read_meta(db, "run"), read_meta(db, "schema")
    if owner != run_id:
        raise StaleFolderError(
            f"{path.name} belongs to run {owner!r}, this is {run_id!r}",
            why="run ids are never reused, and two runs never share a folder",
            fix=f"pass another --dir, or set `run: {owner}` to go on with that run",
        )
    _check_schema(path, schema)
    return db


def connect_reader(path: Path) -> sqlite3.Connection:
    """Begin a read transaction beside a writer; in a read-only folder only a closed journal can be read.

    Raises:
        StaleFolderError: the file was written by another version.
        sqlite3.DatabaseError: the file is no journal.
        ConfigError: its folder cannot be written, and its run was killed or goes on.
    """
    db = connect_read_only(path, timeout_s=BUSY_TIMEOUT_S)
    try:
        db.execute("BEGIN")
        _check_schema(path, read_meta(db, "schema"))
    except (sqlite3.DatabaseError, StaleFolderError):
        db.close()
        raise
    return db


def publish_again(path: Path) -> None:
    """Let the next start publish every task that has not arrived: their messages are lost with the broker.

    Of a journal that no queue has open. The ids stay, so that nothing is admitted twice.

    Raises:
        StaleFolderError: the file was written by another version.
        CorruptionError: it is no journal.
    """
    try:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_S)) as db:
            _check_schema(path, read_meta(db, "schema"))
            db.execute("UPDATE tasks SET published = 0 WHERE published = 1 AND spec IS NOT NULL")
    except sqlite3.DatabaseError as error:
        raise CorruptionError(f"{path} is not a readable journal", why=str(error)) from error


@contextmanager
def reading(path: Path) -> Generator[sqlite3.Connection]:
    """``connect_reader`` for the length of a block.

    Raises:
        StaleFolderError: the file was written by another version.
        CorruptionError: the file is no journal, or a page of it is damaged.
        UnavailableError: the disk does not answer, or another process holds the file.
        ConfigError: as ``connect_reader``.
    """
    try:
        with closing(connect_reader(path)) as db:
            yield db  # a damaged page is found when it is read
    except sqlite3.DatabaseError as error:
        if is_passing(error):
            raise UnavailableError(
                f"The journal {path} cannot be read now",
                why=str(error),
                fix="close other programs that have it open, then try it again; nothing was lost",
            ) from error
        raise CorruptionError(
            f"{path} is not a readable journal",
            why=str(error),
            fix="put the file back from a copy, or begin at the newest checkpoint with `tidegate fork`",
        ) from error


def admission_of(path: Path, task_id: TaskId) -> tuple[float, int] | None:
    """(seconds since the epoch, attempt) of a task's admission; None where the journal has no such task.

    Of a packed task the seconds are rounded to the millisecond.

    Raises:
        StaleFolderError, CorruptionError: as ``reading``; also where the task's chunk is damaged.
    """
    with reading(path) as db:
        row = db.execute("SELECT admitted_at_s, attempt FROM tasks WHERE task_id = ?", (task_id,)).fetchone()
        if row is not None:
            return float(row[0]), int(row[1])
        where = position_of(trajectory_id(task_id, sample_index=0))
        packed = None if where is None else packed_with(db, where[0])
        if where is None or packed is None:
            return None
        return packed.admitted_at_s()[where[0] - packed.first], packed.attempt


def first_admission_s(path: Path) -> float | None:
    """Seconds since the epoch of the first admission, rounded to the millisecond if it is packed; None before it.

    Raises:
        StaleFolderError, CorruptionError: as ``reading``.
    """
    with reading(path) as db:
        (first_s,) = db.execute(
            "SELECT min(at_s) FROM (SELECT min(admitted_at_s) AS at_s FROM tasks"
            " UNION ALL SELECT min(from_ms) / 1000.0 FROM packed)"
        ).fetchone()
    return first_s


def admitted_by_slice(path: Path, *, start_s: float, slice_s: float) -> dict[int, int]:
    """Trajectories admitted for training in each time slice of ``slice_s`` seconds after ``start_s``.

    Admissions of packed tasks are rounded to the millisecond.

    Raises:
        StaleFolderError, CorruptionError: as ``reading``; also where a chunk that lies in several slices is damaged.
    """

    def slice_of(at_s: float) -> int:
        return int((at_s - start_s) / slice_s)

    with reading(path) as db:
        admitted = Counter(
            dict(
                db.execute(
                    "SELECT CAST((admitted_at_s - ?1) / ?2 AS INTEGER), sum(num_samples) FROM tasks"
                    " WHERE kind != 'evaluation' GROUP BY 1",
                    (start_s, slice_s),
                ).fetchall()
            )
        )
        for packed in all_packed(db):
            if packed.kind == "evaluation":
                continue
            first = slice_of(packed.from_ms / 1000)
            if first == slice_of(packed.to_ms / 1000):
                admitted[first] += packed.num_trajectories
            else:
                for at_s in packed.admitted_at_s():
                    admitted[slice_of(at_s)] += packed.num_samples
    return dict(admitted)


def admitted_ids(db: sqlite3.Connection) -> Iterator[TrajectoryId]:
    """Every trajectory that was ever admitted, in order; a row or a chunk at a time, however long the run.

    Raises:
        CorruptionError: a chunk is damaged.
    """
    after = 0
    for packed in all_packed(db):
        content_of(packed)  # a damaged number of tasks must not become an admission
        yield from _ids_of_rows(db, after, packed.first)
        for seq in range(packed.first, packed.last + 1):
            for sample_index in range(packed.num_samples):
                yield trajectory_at(seq, sample_index)
        after = packed.last
    yield from _ids_of_rows(db, after, packed_tasks.SEQ_MAX)


def _ids_of_rows(db: sqlite3.Connection, after: int, before: int) -> Iterator[TrajectoryId]:
    for seq, sample_index in db.execute(
        "SELECT seq, sample_index FROM trajectories WHERE seq > ? AND seq < ? ORDER BY seq, sample_index",
        (after, before),
    ):
        yield trajectory_at(seq, sample_index)


def _check_schema(path: Path, schema: str | None) -> None:
    if schema != str(SCHEMA_VERSION):
        raise StaleFolderError(
            f"{path.name} has schema {schema}, this version writes {SCHEMA_VERSION}",
            fix="finish the run with the version that started it, or start a new run",
        )


def next_seq(db: sqlite3.Connection) -> int:
    """The number of the next task that is admitted."""
    return scalar(
        db,
        "SELECT 1 + max(coalesce((SELECT max(seq) FROM tasks), 0),"
        " coalesce((SELECT last FROM packed ORDER BY first DESC LIMIT 1), 0))",
    )


def count_published(db: sqlite3.Connection) -> int:
    """Tasks that TASKS acknowledged; all packed ones are among them."""
    return scalar(
        db,
        "SELECT (SELECT count(*) FROM tasks WHERE published = 1)"
        " + (SELECT coalesce(sum(last - first + 1), 0) FROM packed)",
    )


def count_rows(db: sqlite3.Connection) -> Counts:
    """Trajectories in rows by state, from every row."""
    numbers = dict(db.execute("SELECT state, count(*) FROM trajectories GROUP BY state").fetchall())
    return Counts(*(int(numbers.get(int(state), 0)) for state in TrajectoryState))


def count_states(db: sqlite3.Connection) -> Counts:
    """Trajectories by state, from every row and from the content of every chunk.

    Raises:
        CorruptionError: a chunk is damaged.
    """
    return count_rows(db).plus(packed_tasks.count_contents(db))


def dataset_position(curriculum: CurriculumState, *, dataset_size: int) -> tuple[int, int]:
    """Epoch and position in it; segments read no dataset (size 0) and stay in epoch 0."""
    return divmod(curriculum.num_drawn, dataset_size) if dataset_size else (0, curriculum.num_drawn)


def scalar(db: sqlite3.Connection, query: str) -> int:
    """The one integer that a query returns."""
    return int(db.execute(query).fetchone()[0])


def read_meta(db: sqlite3.Connection, key: str) -> str | None:
    """A small value as text, None when it was never written."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])


def read_json(db: sqlite3.Connection, key: str, kind: type[T]) -> T | None:
    """A small value as a struct, None when it was never written.

    Raises:
        msgspec.DecodeError: the text is not what ``write_json`` wrote.
    """
    text = read_meta(db, key)
    return None if text is None else msgspec.json.decode(text, type=kind)


def write_meta(db: sqlite3.Connection, key: str, value: str) -> None:
    """Write a small value; part of whatever transaction is open."""
    db.execute(
        "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value)
    )


def write_json(db: sqlite3.Connection, key: str, value: object) -> None:
    """Write a struct; part of whatever transaction is open."""
    write_meta(db, key, msgspec.json.encode(value).decode())
