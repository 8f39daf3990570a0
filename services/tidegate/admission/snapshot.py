"""What a backup and a page copy of admission: samples, objectives, events; for a page whether the run is complete."""

from tidegate.admission.completion import FILE as COMPLETION_FILE
from tidegate.runtime.snapshots.files import SnapshotFiles

LINES = (
    "admission/events.jsonl*",
    "admission/slos.json",
    "admission/slo_events.jsonl*",
    "admission/stats.jsonl*",
)


def add_lines(files: SnapshotFiles) -> None:
    """The files, for a page."""
    files.add_found(*LINES, f"admission/{COMPLETION_FILE}")
