"""What a backup copies of the learner, its newest checkpoint and its curves; a page copies the curves.

A learner that stands by copies the checkpoint alone.
"""

from collections.abc import Generator
from pathlib import Path

from tidegate.core.errors import NotFoundError
from tidegate.core.ids import PolicyVersion
from tidegate.learner.checkpoint import checkpoints_in
from tidegate.runtime.snapshots.files import SnapshotFiles
from tidegate.wire.snapshots import SnapshotOpened, SnapshotRequest

LINES = ("learner/environment.json", "learner/steps.jsonl*", "learner/token_gaps.jsonl*")


class NoCheckpointError(NotFoundError):
    """The run has no state yet from which it could go on."""


def learner_moment(
    _request: SnapshotRequest, files: SnapshotFiles, *, checkpoints: Path
) -> Generator[SnapshotOpened]:
    """Open the newest checkpoint, then the files of lines, which only grow.

    Raises:
        NoCheckpointError: there is none yet.
    """
    yield SnapshotOpened(checkpoint=add_newest_checkpoint(files, checkpoints))
    files.add_found(*LINES)


def add_lines(files: SnapshotFiles) -> None:
    """The files of lines, for a page."""
    files.add_found(*LINES)


def add_unknown_checkpoint(files: SnapshotFiles, *, checkpoints: Path, known: PolicyVersion | None) -> None:
    """The newest checkpoint, unless it holds ``known``.

    Raises:
        NoCheckpointError: there is none yet.
    """
    held = list(checkpoints_in(checkpoints).values()) if checkpoints.is_dir() else []
    if not held or held[-1] != known:
        add_newest_checkpoint(files, checkpoints)


def add_newest_checkpoint(files: SnapshotFiles, checkpoints: Path) -> PolicyVersion:
    """The newest checkpoint that is still there when its files are opened; none of them changes any more.

    Raises:
        NoCheckpointError: there is none yet.
    """
    for path, version in reversed((checkpoints_in(checkpoints) if checkpoints.is_dir() else {}).items()):
        try:
            names = sorted(path.iterdir())
        except FileNotFoundError:  # deleted meanwhile; a newer one is there
            continue
        if files.add_all(names):
            return version
    raise NoCheckpointError(
        f"{files.folder} has no checkpoint yet",
        why="a backup is of a state from which the run can go on",
        fix="wait: the learner writes one before its first update",
    )
