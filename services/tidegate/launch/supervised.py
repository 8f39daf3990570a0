"""Whether `tidegate up` holds a folder: from before its run's first file until after its summary and report."""

import os
import time
from pathlib import Path

from tidegate.launch.run_folder import LOCK, is_run_folder
from tidegate.runtime.files import lock_file

# From the lock to run.json: own code, datasets and models are prepared between them.
FIRST_FILE_S = 300.0
# For a copy of a run in a cluster to appear, which another container of the pod makes.
FIRST_COPY_S = 120.0
LOOK_PERIOD_S = 0.2


def is_supervised(folder: Path) -> bool:
    """Whether another process holds the folder. `is_running` ends earlier, with the last service."""
    path = folder / LOCK
    if not path.is_file():
        return False
    try:
        descriptor = lock_file(path)
    except OSError:  # a copy that this user may not write
        return False
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def await_folder(folder: Path, *, copied: bool = False) -> None:
    """Wait until a run that is being started has written its first file; return at once where none is started.

    ``copied``: the folder is one that another container fills, which may not have begun.
    """
    deadline_s = time.monotonic() + (FIRST_COPY_S if copied else FIRST_FILE_S)
    while not is_run_folder(folder) and (copied or is_supervised(folder)) and time.monotonic() < deadline_s:
        time.sleep(LOOK_PERIOD_S)
