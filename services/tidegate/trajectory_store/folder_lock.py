"""One trajectory store a folder."""

from pathlib import Path

from tidegate.core.errors import StaleFolderError
from tidegate.runtime.files import lock_file


def lock_folder(folder: Path) -> int:
    """The descriptor that holds the folder until it is closed, or its process ends.

    Raises:
        StaleFolderError: another trajectory store holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = lock_file(folder / "store.lock")
    if descriptor is None:
        raise StaleFolderError(
            f"The folder {folder} is in use by another trajectory store",
            why="each of two writers would have half of the trajectories",
            fix="stop the other one, or use another folder",
        )
    return descriptor
