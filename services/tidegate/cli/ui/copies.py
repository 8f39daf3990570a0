"""``copies.json``: how old the copied records of a run in a cluster are; and whether that run goes on."""

import time
from pathlib import Path

import msgspec

from tidegate.launch.run_folder import is_run_folder, is_running, read_processes
from tidegate.launch.supervised import is_supervised

COPIES_JSON = "copies.json"
# For the folder to appear, which another container of the pod makes.
COPY_DEADLINE_S = 120.0
LOOK_PERIOD_S = 0.2


class Copies(msgspec.Struct, frozen=True):
    """When each service's records were copied last, and why the last attempt failed, by service."""

    at_s: dict[str, float] = {}
    problems: dict[str, str] = {}


def read_copies(folder: Path) -> Copies | None:
    """The file; None of a folder that is no copy."""
    try:
        return msgspec.json.decode((folder / COPIES_JSON).read_bytes(), type=Copies)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def await_copy(folder: Path) -> None:
    """Wait until the folder is there; return when it should be."""
    deadline_s = time.monotonic() + COPY_DEADLINE_S
    while not is_run_folder(folder) and time.monotonic() < deadline_s:
        time.sleep(LOOK_PERIOD_S)


def is_over(folder: Path) -> bool:
    """Whether nothing of a run is written any more; of a copy, while the run in the cluster is complete."""
    if read_copies(folder) is None:
        return not (is_running(folder) or is_supervised(folder))
    processes = read_processes(folder)
    return processes is not None and processes.ended
