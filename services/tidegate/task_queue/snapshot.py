"""What a backup copies of the task queue, its journal and its datasets, which never change; a page, its journal."""

from collections.abc import Generator
from pathlib import Path

from tidegate.core.errors import NotFoundError
from tidegate.core.ids import trajectory_at
from tidegate.runtime.snapshots.files import SnapshotFiles
from tidegate.task_queue import journal_file, packed_tasks
from tidegate.task_queue.state import TrajectoryState
from tidegate.wire.snapshots import JournalMoment, SnapshotOpened, SnapshotRequest

DATA = "data/*"


def journal_moment(
    _request: SnapshotRequest, files: SnapshotFiles, *, path: Path
) -> Generator[SnapshotOpened]:
    """Fix a moment of the journal, then copy it.

    Raises:
        NotFoundError: there is no journal yet.
        CorruptionError: it cannot be read.
        NoSpaceError: the disk has too little space for the copy.
    """
    if not path.is_file():
        raise NotFoundError(f"There is no {path}", fix="wait until the run has started")
    with journal_file.reading(path) as journal:
        next_seq = journal_file.next_seq(journal)  # its snapshot begins here
        admitted = journal_file.count_rows(journal).plus(packed_tasks.count_columns(journal)).admitted
        running = journal.execute(
            f"SELECT seq, sample_index FROM trajectories WHERE state = {int(TrajectoryState.ADMITTED)}"
        )
        names = tuple(trajectory_at(*place) for place in running)
        yield SnapshotOpened(journal=JournalMoment(next_seq, admitted, names))
        files.add_database(journal, path)
    files.add_found(DATA)


def add_journal(files: SnapshotFiles, *, path: Path) -> None:
    """The journal, for a page; nothing before there is one.

    Raises:
        CorruptionError, NoSpaceError: as ``journal_moment``.
    """
    if path.is_file():
        with journal_file.reading(path) as journal:
            files.add_database(journal, path)
