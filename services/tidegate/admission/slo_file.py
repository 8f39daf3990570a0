"""The objectives of a run on disk: their state, so that a restart goes on with the budgets it had, and their events.

``slos.json`` is whole and replaced at once; it is also what ``tidegate slo`` reads of a run that has stopped.
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
    """One objective as it was declared and what it remembered."""

    slo: Slo
    state: SloState


class SloRecord(msgspec.Struct, frozen=True):
    """``slos.json``. ``at_s``: seconds since the epoch; ``clock_s``: what the clock of the states said then."""

    at_s: float
    clock_s: float
    slos: dict[str, SavedSlo] = {}


class SloEvent(msgspec.Struct, frozen=True):
    """An objective went from one condition to another. ``at_s``: seconds since the epoch."""

    at_s: float
    event: str
    change: Change

    def fields(self) -> dict[str, object]:
        """All of it, flat."""
        return {"at_s": self.at_s, "event": self.event, **msgspec.structs.asdict(self.change)}

    def line(self) -> bytes:
        """One line of the file."""
        return msgspec.json.encode(self.fields()) + b"\n"


def read_slos(path: Path) -> SloRecord | None:
    """What was written last; None when there is nothing, or nothing that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=SloRecord)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def write_slos(path: Path, record: SloRecord) -> None:
    """Replace the file at once."""
    replace_file(path, msgspec.json.encode(record))


def restored(
    record: SloRecord | None, slos: Mapping[str, Slo], *, now_s: float, wall_s: float
) -> dict[str, SloState]:
    """The states of the objectives as they are declared now; one that was declared otherwise begins anew.

    The time since the file was written passes for all of them; ``now_s`` is the clock that states are told from now on.
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
    """How each objective of a run that has stopped stood when it was last observed."""
    return [
        verdict(
            kept.slo,
            kept.state,
            now_s=record.clock_s if kept.state.seen_at_s is None else kept.state.seen_at_s,
        )
        for kept in record.slos.values()
    ]
