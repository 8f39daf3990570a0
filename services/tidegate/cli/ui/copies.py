"""``copies.json``: how old the copied records of a run in a cluster are; and whether that run goes on."""

from pathlib import Path

import msgspec

from tidegate.launch.run_folder import is_running, read_processes
from tidegate.launch.supervised import is_supervised

COPIES_JSON = "copies.json"


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


def is_over(folder: Path) -> bool:
    """Whether nothing of a run is written any more; of a copy, while the run in the cluster is complete."""
    if read_copies(folder) is None:
        return not (is_running(folder) or is_supervised(folder))
    processes = read_processes(folder)
    return processes is not None and processes.ended
