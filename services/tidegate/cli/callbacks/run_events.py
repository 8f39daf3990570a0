"""Finds in a run folder what callbacks are told, each thing once. Reads files and writes none."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidegate.cli.callbacks.events import EndOfRun, KeptCheckpoint, RunEvaluation, RunEvent, RunUpdate
from tidegate.cli.samples import numbers
from tidegate.cli.step_tail import StepTail
from tidegate.cli.up.summary import SUMMARY_JSON, read_summary
from tidegate.core.errors import CorruptionError
from tidegate.core.ids import parse_version
from tidegate.launch.forking import CHECKPOINTS
from tidegate.runtime.run_event_log import events_size, read_events

# Of one look. A callback that is slower than its run misses the oldest of what has gathered.
EVENTS_MAX = 10_000
# Of an evaluation's event, what is no figure of it.
NOT_NUMBERS = frozenset({"at_s", "kind", "version"})
# The last part is the step, the one before the lineage: ``learner.checkpoint`` names them.
_MANIFEST = "manifest.json"


class RunEvents:
    """What is new in a folder since ``since_s``; not safe for threads.

    Bounded: a look returns at most ``EVENTS_MAX`` events, and ``num_skipped`` counts the others.
    """

    def __init__(self, folder: Path, *, since_s: float, evaluated_since_s: float | None = None) -> None:
        """``since_s``: seconds since the epoch at which this start of the run began; what is older is of an earlier.

        ``evaluated_since_s``: of evaluations, where it is another time, as they are told by another clock.
        """
        self._folder = folder
        self._since_s = since_s
        self._tail = StepTail(folder)
        self._last_told: dict[str, Any] = {}
        self._evaluated_at_s = since_s if evaluated_since_s is None else evaluated_since_s
        self._events_size = -1
        self._checkpoints: set[str] = set()
        self.num_skipped = 0

    def new(self) -> Sequence[RunEvent]:
        """What happened since the last call, in the order of time."""
        found = sorted([*self._updates(), *self._evaluations(), *self._kept()], key=lambda event: event.at_s)
        self.num_skipped += max(0, len(found) - EVENTS_MAX)
        return found[-EVENTS_MAX:]

    def end(self, *, now_s: float) -> EndOfRun:
        """The end of the run, which is over."""
        summary = self._summary()
        if summary is None:
            return EndOfRun("", succeeded=False, at_s=now_s, summary=None)
        return EndOfRun(
            str(summary.get("ended_by", "")),
            succeeded=bool(summary.get("succeeded")),
            at_s=now_s,
            summary=summary,
        )

    def _updates(self) -> Iterator[RunUpdate]:
        from_first, lines = self._tail.new()
        for line in self._untold(lines) if from_first else lines:
            self._last_told = line
            yield RunUpdate(line)

    def _untold(self, lines: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Of a log that comes from its beginning, at first or after it was rotated, what follows the last one told.

        Their times decide only where that one is not among them: a clock may be set back.
        """
        for index in range(len(lines) - 1, -1, -1):
            if lines[index] == self._last_told:
                return lines[index + 1 :]
        last_at_s = self._last_told.get("at_s", self._since_s)
        return [line for line in lines if line.get("at_s", 0.0) > last_at_s]

    def _evaluations(self) -> Iterator[RunEvaluation]:
        size = events_size(self._folder)
        if size == self._events_size:
            return
        self._events_size = size
        newest_s = self._evaluated_at_s
        for event in read_events(self._folder, "evaluation"):
            at_s = event.get("at_s", 0.0)
            if at_s <= self._evaluated_at_s:
                continue
            newest_s = max(newest_s, at_s)
            version = parse_version(event["version"])
            values = numbers({name: value for name, value in event.items() if name not in NOT_NUMBERS})
            yield RunEvaluation(str(version), version.step, at_s, values)
        self._evaluated_at_s = newest_s

    def _kept(self) -> Iterator[KeptCheckpoint]:
        directory = self._folder / CHECKPOINTS
        present: set[str] = set()
        for manifest in sorted(directory.glob(f"[0-9]*/{_MANIFEST}")):
            folder = manifest.parent
            present.add(folder.name)
            if folder.name in self._checkpoints:
                continue
            with suppress(FileNotFoundError):  # it was removed just now
                at_s = manifest.stat().st_mtime
                if at_s > self._since_s:
                    _, lineage, step = folder.name.rsplit(".", 2)
                    yield KeptCheckpoint(f"{lineage}@{step}", int(step), at_s, folder)
        self._checkpoints = present

    def _summary(self) -> dict[str, Any] | None:
        path = self._folder / SUMMARY_JSON
        if not path.is_file() or path.stat().st_mtime <= self._since_s:
            return None
        with suppress(CorruptionError):
            return read_summary(self._folder)
        return None
