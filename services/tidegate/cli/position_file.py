"""How far what follows a run has come: one small file, which another run's position does not survive."""

from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from tidegate.core.json_text import NOT_JSON


class RunPosition(Protocol):
    """A ``msgspec.Struct`` of what was sent or told of a run."""

    run_id: str


PositionT = TypeVar("PositionT", bound=RunPosition)


def read_position(path: Path, start: PositionT) -> PositionT:
    """The position that the file keeps; ``start`` where it cannot be read, or is of another run."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=type(start))
    except (OSError, *NOT_JSON):
        return start
    return found if found.run_id == start.run_id else start
