"""``copies.json``: how old the copied records of a run in a cluster are."""

from pathlib import Path

import msgspec

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
