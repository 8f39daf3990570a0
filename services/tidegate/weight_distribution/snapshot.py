"""What a backup copies of weight distribution: the best version, which the learner's checkpoint is not."""

from collections.abc import Generator
from pathlib import Path

from tidegate.core.ids import parse_version
from tidegate.runtime.best_version import BEST_FILE, read_best
from tidegate.runtime.snapshots.files import SnapshotFiles
from tidegate.weight_distribution.reading import VersionsOnDisk
from tidegate.wire.snapshots import SnapshotOpened, SnapshotRequest

VERSIONS = "versions"


def best_moment(
    _request: SnapshotRequest, files: SnapshotFiles, *, folder: Path
) -> Generator[SnapshotOpened]:
    """Open the best version; it fits every moment of the others."""
    add_best(files, folder)
    yield SnapshotOpened()


def add_best(files: SnapshotFiles, folder: Path) -> None:
    """The best version, with each file that holds tensors of it; without it where one of them is gone."""
    best = read_best(folder)
    if best is None:
        return
    try:
        paths = VersionsOnDisk(folder / VERSIONS).files_of(parse_version(best.version))
    except ValueError:
        return
    if paths:
        files.add_all([folder / BEST_FILE, *paths])
