"""The objectives of a run on disk: their state, so that a restart keeps the error budgets, and their events.

``slos.json`` is replaced atomically; it is also what ``tidegate slo`` reads of a run that has stopped.
``slo_events.jsonl`` has one line for each objective that began to burn, broke, recovered, or lost its data.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tidegate.core.slo import Change, Slo, SloState, Verdict, verdict
from tidegate.runtime.files import replace_file

STATE_FILE = "slos.json"
EVENTS_FILE = "slo_events.jsonl"


class SavedSlo(msgspec.Struct, frozen=True):
    """One objective as it was declared, and its state."""

    slo: Slo
    state: SloState


class SloRecord(msgspec.Struct, frozen=True):
    """``slos.json``. ``at_s``: seconds since the epoch; ``clock_s``: the monotonic clock of the states at that time."""

    at_s: float
    clock_s: float
    slos: dict[str, SavedSlo] = {}


class SloEvent(msgspec.Struct, frozen=True):
    """A change of an objective's condition. ``at_s``: seconds since the epoch."""

    at_s: float
    event: str
    change: Change

    def fields(self) -> dict[str, object]:
        """All fields in one flat mapping."""
        return {"at_s": self.at_s, "event": self.event, **msgspec.structs.asdict(self.change)}

    def line(self) -> bytes:
        """One line of the file."""
        return msgspec.json.encode(self.fields()) + b"\n"


def read_slos(path: Path) -> SloRecord | None:
    """The last written record; None when the file is missing or unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=SloRecord)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def write_slos(path: Path, record: SloRecord) -> None:
    """Replace the file atomically."""
    replace_file(path, msgspec.json.encode(record))


def restored(
    record: SloRecord | None, slos: Mapping[str, Slo], *, now_s: float, wall_s: float
) -> dict[str, SloState]:
    """The states of the objectives as they are declared now; one whose declaration changed starts empty.

    All states age by the time since the file was written; ``now_s`` is on the clock of the new states.
    """
    kept = record.slos if record is not None else {}
    states: dict[str, SloState] = {}
    for name, slo in slos.items():
        known = kept.get(name)
        if record is None or known is None or known.slo != slo or known.state.seen_at_s is None:
            states[name] = SloState()
            continue
        away_s = max(0.0, wall_s - record.at_s) + max(0.0, record.clock_s - known.state.seen_at_s)
        states[name] = msgspec.structs.replace(known.state, seen_at_s=now_s - away_s)
    return states


def verdicts_of(record: SloRecord) -> list[Verdict]:
    """The last verdict on each objective of a run that has stopped."""
    return [
        verdict(
            kept.slo,
            kept.state,
            now_s=record.clock_s if kept.state.seen_at_s is None else kept.state.seen_at_s,
        )
        for kept in record.slos.values()
    ]
