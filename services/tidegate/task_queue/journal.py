"""The admission journal: every admitted task, on disk before it is published.

SQLite in WAL mode with ``synchronous=NORMAL``: a commit survives ``kill -9`` of the process; a power cut may take the
last ones. A transaction takes well under a millisecond (one that packs about ten), so it runs on the event loop. The
audit opens the same file read-only, beside a live queue or after it.
"""

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import msgspec

from tidegate.core.admission import Limits
from tidegate.core.audit import JournalTotals
from tidegate.core.curriculum import CurriculumState
from tidegate.core.errors import CorruptionError, NotFoundError, TidegateError, UnavailableError
from tidegate.core.ids import (
    PolicyVersion,
    RunId,
    TaskId,
    TrajectoryId,
    parse_version,
    position_of,
    task_id,
    trajectory_at,
)
from tidegate.core.records import Task
from tidegate.runtime.sqlite_errors import is_passing
from tidegate.task_queue.journal_file import (
    admitted_ids,
    connect_writer,
    count_published,
    count_rows,
    count_states,
    dataset_position,
    next_seq,
    read_json,
    read_meta,
    reading,
    write_json,
    write_meta,
)
from tidegate.task_queue.packed_tasks import count_columns, packed_state
from tidegate.task_queue.packing import pack, unpack
from tidegate.task_queue.state import (
    IN_FLIGHT,
    Counts,
    TrainedAt,
    TrajectoryState,
    state_after,
)
from tidegate.wire.clients.trajectory_store import Outcome
from tidegate.wire.convert import task_to_bytes

# Ids an answer: well below a megabyte.
IDS_AT_ONCE = 10_000


class Applied(msgspec.Struct, frozen=True):
    """What a batch of outcomes changed; ``newest_seq`` is the newest task a trajectory arrived from (0: none).

    ``ended``: outcomes that made a trajectory terminal, each counted once, however often it is reported.
    """

    changed: int
    unknown: int
    newest_seq: int
    ended: tuple[Outcome, ...] = ()


class Unpublished(msgspec.Struct, frozen=True):
    """A journaled task that TASKS has not acknowledged yet."""

    seq: int
    task_id: TaskId
    attempt: int
    spec: bytes


class OpenTrajectory(msgspec.Struct, frozen=True):
    """A trajectory in flight and when its task was admitted."""

    trajectory_id: TrajectoryId
    admitted_at_s: float


class Journal:
    """One open journal. Counters in memory follow every committed transaction; ``recount`` derives them again."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Read the counters from the file; use ``open_journal``."""
        self._db = connection
        packed = count_columns(connection)
        self.num_packed = packed.admitted
        self.counts = count_rows(connection).plus(packed)
        self.next_seq = next_seq(connection)
        self.published_tasks = count_published(connection)
        self.cursor = int(read_meta(connection, "cursor") or 0)
        self.curriculum = read_json(connection, "curriculum", CurriculumState) or CurriculumState()
        self.limits = read_json(connection, "limits", Limits)
        self.trained_at: TrainedAt = {
            parse_version(text): count
            for text, count in (read_json(connection, "trained_at", dict[str, int]) or {}).items()
        }
        evaluated = read_meta(connection, "evaluated")
        self.evaluated: PolicyVersion | None = parse_version(evaluated) if evaluated else None
        self.retired = False
        self.dataset_size = 0

    @property
    def connection(self) -> sqlite3.Connection:
        """The writer's, whose changes are replicated."""
        return self._db

    @property
    def unpublished_tasks(self) -> int:
        """Tasks that TASKS has not acknowledged yet."""
        return self.next_seq - 1 - self.published_tasks

    def admit(self, tasks: Sequence[Task], *, curriculum: CurriculumState) -> None:
        """Record tasks as admitted, in one transaction with the dataset's position. Their ids continue ``next_seq``."""
        with self._transaction():
            for seq, task in enumerate(tasks, start=self.next_seq):
                assert task.task_id == task_id(seq), f"{task.task_id} is out of order, {task_id(seq)} is next"
                self._db.execute(
                    "INSERT INTO tasks (seq, task_id, kind, num_samples, spec, admitted_at_s, attempt)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (
                        seq,
                        task.task_id,
                        task.kind,
                        task.num_samples,
                        task_to_bytes(task),
                        task.admitted_at_s,
                        task.attempt,
                    ),
                )
                self._db.executemany(
                    "INSERT INTO trajectories (seq, sample_index) VALUES (?, ?)",
                    [(seq, sample_index) for sample_index in range(task.num_samples)],
                )
            write_json(self._db, "curriculum", curriculum)
        self.curriculum = curriculum
        self.next_seq += len(tasks)
        self.counts = self.counts.admit(sum(task.num_samples for task in tasks))

    def unpublished(self, *, limit: int) -> list[Unpublished]:
        """Journaled tasks to publish, oldest first."""
        rows = self._db.execute(
            "SELECT seq, task_id, attempt, spec FROM tasks WHERE published = 0 ORDER BY seq LIMIT ?", (limit,)
        )
        return [Unpublished(seq, TaskId(name), attempt, spec) for seq, name, attempt, spec in rows]

    def mark_published(self, seqs: Sequence[int]) -> None:
        """Record that TASKS acknowledged these tasks. Idempotent."""
        with self._transaction():
            marked = sum(self._publish(seq) for seq in seqs)
        self.published_tasks += marked

    def apply(
        self,
        outcomes: Sequence[Outcome],
        *,
        next_cursor: int,
        curriculum: CurriculumState | None = None,
        trained_at: TrainedAt | None = None,
    ) -> Applied:
        """Follow the ledger: states and the cursor move in one transaction, so a crash repeats or skips nothing.

        ``curriculum`` and ``trained_at`` replace what is kept, in the same transaction; updates of these outcomes are
        counted on top of ``trained_at``. Outcomes that change packed trajectories unpack their chunks.

        Raises:
            CorruptionError: a chunk is damaged.
        """
        counts, ahead = self.counts, dict(self.trained_at if trained_at is None else trained_at)
        state_of_curriculum = curriculum or self.curriculum
        changed = unknown = newest_seq = published = unpacked = 0
        ended: list[Outcome] = []
        with self._transaction():
            for outcome in outcomes:
                where = position_of(outcome.trajectory_id)
                before = None if where is None else self._state(*where)
                if where is None or before is None:
                    unknown += 1
                    continue
                seq, sample_index = where
                after = state_after(before, outcome.state)
                if outcome.state == "accepted":
                    newest_seq = max(newest_seq, seq)
                if after is before:
                    continue
                changed += 1
                if before not in IN_FLIGHT:
                    unpacked += unpack(self._db, seq)
                self._db.execute(
                    "UPDATE trajectories SET state = ? WHERE seq = ? AND sample_index = ?",
                    (int(after), seq, sample_index),
                )
                counts = counts.move(before, after)
                if before is TrajectoryState.ADMITTED:
                    published += self._publish(seq)
                    self._db.execute("UPDATE tasks SET spec = NULL WHERE seq = ?", (seq,))
                if after not in IN_FLIGHT:
                    ended.append(outcome)
                if after is TrajectoryState.TRAINED and outcome.trained_at is not None:
                    ahead[outcome.trained_at] = ahead.get(outcome.trained_at, 0) + 1
            write_meta(self._db, "cursor", str(next_cursor))
            write_json(self._db, "curriculum", state_of_curriculum)
            write_json(self._db, "trained_at", {str(version): count for version, count in ahead.items()})
        self.counts, self.cursor, self.trained_at = counts, next_cursor, ahead
        self.curriculum = state_of_curriculum
        self.published_tasks += published
        self.num_packed -= unpacked
        return Applied(changed=changed, unknown=unknown, newest_seq=newest_seq, ended=tuple(ended))

    def pack(self, *, rows_kept_max: int) -> int:
        """Pack a chunk of the oldest tasks while more than ``rows_kept_max`` trajectories have rows.

        Returns how many trajectories were packed: 0 also where one of the oldest tasks is not terminal yet.

        Raises:
            CorruptionError: tasks do not have the trajectories that they were admitted with.
        """
        if self.counts.admitted - self.num_packed <= rows_kept_max:
            return 0
        with self._transaction():
            num_trajectories = pack(self._db)
        self.num_packed += num_trajectories
        return num_trajectories

    def keep_weights(self, weights: dict[str, float]) -> None:
        """Remember the weights of bins, before a task is drawn by them; empty for none."""
        curriculum = msgspec.structs.replace(self.curriculum, weights=weights)
        with self._transaction():
            write_json(self._db, "curriculum", curriculum)
        self.curriculum = curriculum

    def keep_limits(self, limits: Limits) -> None:
        """Remember the last limits, for a start without admission (I9)."""
        with self._transaction():
            write_json(self._db, "limits", limits)
        self.limits = limits

    def keep_evaluated(self, version: PolicyVersion) -> None:
        """Remember the version whose evaluation was published last."""
        with self._transaction():
            write_meta(self._db, "evaluated", str(version))
        self.evaluated = version

    def running(self, *, before_seq: int, limit: int) -> list[TrajectoryId]:
        """Trajectories of tasks numbered below ``before_seq`` that never arrived at the store, oldest first."""
        rows = self._db.execute(
            f"SELECT seq, sample_index FROM trajectories WHERE state <= {int(TrajectoryState.ACCEPTED)}"
            " AND state = ? AND seq < ? ORDER BY seq, sample_index LIMIT ?",
            (int(TrajectoryState.ADMITTED), before_seq, limit),
        )
        return [trajectory_at(seq, sample_index) for seq, sample_index in rows]

    def in_flight(self, *, limit: int) -> list[OpenTrajectory]:
        """Trajectories without a terminal outcome, oldest first."""
        rows = self._db.execute(
            "SELECT seq, sample_index, admitted_at_s FROM trajectories JOIN tasks USING (seq)"
            f" WHERE state <= {int(TrajectoryState.ACCEPTED)} ORDER BY seq, sample_index LIMIT ?",
            (limit,),
        )
        return [
            OpenTrajectory(trajectory_at(seq, sample), admitted_at_s) for seq, sample, admitted_at_s in rows
        ]

    def oldest_running_seq(self) -> int:
        """The oldest task with a trajectory that never arrived at the store; ``next_seq`` when there is none."""
        seq = self._db.execute(
            f"SELECT min(seq) FROM trajectories WHERE state <= {int(TrajectoryState.ACCEPTED)} AND state = ?",
            (int(TrajectoryState.ADMITTED),),
        ).fetchone()[0]
        return self.next_seq if seq is None else int(seq)

    def totals(self) -> JournalTotals:
        """The left-hand side of the audit."""
        epoch, position = dataset_position(self.curriculum, dataset_size=self.dataset_size)
        return JournalTotals(
            admitted=self.counts.admitted,
            open=self.counts.in_flight,
            published_tasks=self.published_tasks,
            epoch=epoch,
            position=position,
            retired=self.retired,
        )

    def keep_dataset_size(self, size: int) -> None:
        """Remember how many prompts an epoch has (0: none, segments), so that a reader can compute the position."""
        with self._transaction():
            write_meta(self._db, "dataset_size", str(size))
        self.dataset_size = size

    def set_retired(self, *, retired: bool) -> None:
        """Record whether the run was retired, for readers of the file: a resumed run admits again."""
        with self._transaction():
            write_meta(self._db, "retired", str(int(retired)))
        self.retired = retired

    def recount(self) -> Counts:
        """The counters derived from every row and chunk: the slow twin of what the transactions maintain."""
        return count_states(self._db)

    def close(self) -> None:
        """Fold the write-ahead log into the file and let go of it."""
        self._db.close()

    def _state(self, seq: int, sample_index: int) -> TrajectoryState | None:
        row = self._db.execute(
            "SELECT state FROM trajectories WHERE seq = ? AND sample_index = ?", (seq, sample_index)
        ).fetchone()
        return packed_state(self._db, seq, sample_index) if row is None else TrajectoryState(row[0])

    def _publish(self, seq: int) -> int:
        return self._db.execute(
            "UPDATE tasks SET published = 1 WHERE seq = ? AND published = 0", (seq,)
        ).rowcount

    @contextmanager
    def _transaction(self) -> Generator[None, None, None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise TidegateError(
                "The task queue's journal cannot be written",
                why=str(error),
                fix="free space in the run folder; the service restarts by itself and resumes where it was",
            ) from error


def open_journal(path: Path, *, run_id: RunId) -> Journal:
    """Create the journal of a run, or go on with it.

    Raises:
        StaleFolderError: the file belongs to another run, or was written by another version.
        CorruptionError: the file is no journal.
        UnavailableError: the disk is full or does not answer, or another process holds the file.
    """
    try:
        return Journal(connect_writer(path, run_id=run_id))
    except (sqlite3.DatabaseError, msgspec.DecodeError, ValueError) as error:
        if is_passing(error):
            raise UnavailableError(
                f"{path.name} cannot be opened",
                why=str(error),
                fix="free space on its disk, and close other programs that have it open; nothing was lost",
            ) from error
        raise CorruptionError(
            f"{path.name} is not a readable journal",
            why=str(error),
            fix="restore the run folder from a backup, or start a new run with another `run` id",
        ) from error


class JournalReader:
    """A journal as the audit reads it: one moment of it, beside a live writer."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Use ``read_journal``."""
        self._db = connection

    def run_id(self) -> RunId:
        """The run this journal belongs to."""
        return RunId(read_meta(self._db, "run") or "")

    def totals(self) -> JournalTotals:
        """Admitted and in flight, counted from every row and chunk."""
        counts = count_states(self._db)
        curriculum = read_json(self._db, "curriculum", CurriculumState) or CurriculumState()
        epoch, position = dataset_position(
            curriculum, dataset_size=int(read_meta(self._db, "dataset_size") or 0)
        )
        return JournalTotals(
            admitted=counts.admitted,
            open=counts.in_flight,
            published_tasks=count_published(self._db),
            epoch=epoch,
            position=position,
            retired=read_meta(self._db, "retired") == "1",
        )

    def admitted_ids(self) -> Iterator[TrajectoryId]:
        """Every trajectory that was ever admitted, in order."""
        return admitted_ids(self._db)


def moment(path: Path) -> Generator[JournalTotals | list[TrajectoryId]]:
    """One consistent moment for an audit: the totals, counted from the rows, then every admitted id in lists.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: as ``read_journal``.
    """
    with read_journal(path) as journal:
        yield journal.totals()
        ids = journal.admitted_ids()
        while some := list(islice(ids, IDS_AT_ONCE)):
            yield some


@contextmanager
def read_journal(path: Path) -> Generator[JournalReader, None, None]:
    """Open a journal to read one consistent moment of it; never blocks its writer.

    Raises:
        NotFoundError: there is no journal.
        StaleFolderError: the file was written by another version.
        CorruptionError: the file is no journal, or what is read of it is damaged.
    """
    if not path.exists():
        raise NotFoundError(
            f"There is no journal at {path}", fix="name the folder of a run that was started once"
        )
    with reading(path) as connection:
        yield JournalReader(connection)


def read_admitted_ids(path: Path) -> Iterator[TrajectoryId]:
    """Every trajectory id a journal ever admitted, live or stopped; see ``read_journal`` for what it raises."""
    with read_journal(path) as journal:
        yield from journal.admitted_ids()
