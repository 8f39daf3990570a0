"""Follows a run folder into a tracker, and remembers how far it came."""

import math
from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml

from tidegate.admission.slo_file import STATE_FILE, read_slos, verdicts_of
from tidegate.cli.samples import numbers
from tidegate.cli.step_tail import StepTail, curves_of
from tidegate.cli.track.port import Tracker
from tidegate.cli.up.summary import SUMMARY_JSON, read_summary
from tidegate.core.ids import parse_version
from tidegate.launch.run_event_log import read_events
from tidegate.launch.run_folder import read_record
from tidegate.runtime.files import replace_file


class Cursor(msgspec.Struct):
    """How far a run was tracked: its updates and evaluations, and whether its texts were written."""

    run_id: str = ""
    last_step: int = 0
    evaluations: int = 0
    objectives_at_s: float = 0.0
    started: bool = False
    ended_at_s: float = 0.0


class TrackedRun:
    """Sends what is new in a run folder. A run that is tracked again goes on where it was; nothing comes twice."""

    def __init__(self, folder: Path, tracker: Tracker, cursor_file: Path) -> None:
        """``cursor_file``: where the position is kept, beside what the tracker writes."""
        self._folder = folder
        self._tracker = tracker
        self._cursor_file = cursor_file
        self._tail = StepTail(folder)
        self._run_id = read_record(folder).run_id
        self._cursor = self._read_cursor()

    def _read_cursor(self) -> Cursor:
        try:
            cursor = msgspec.json.decode(self._cursor_file.read_bytes(), type=Cursor)
        except (OSError, msgspec.DecodeError):
            return Cursor(run_id=self._run_id)
        return cursor if cursor.run_id == self._run_id else Cursor(run_id=self._run_id)

    def send_new(self) -> int:
        """Send what is new, and keep the position; returns how many updates that were."""
        sent = 0
        self._send_start()
        for update in self._tail.new()[1]:
            if update["step"] <= self._cursor.last_step:
                continue
            values = finite(curves_of(update), section="train")
            self._tracker.numbers(values, step=update["step"], at_s=update["at_s"])
            self._cursor.last_step = update["step"]
            sent += 1
        self._send_evaluations()
        self._send_objectives()
        self._send_end()
        replace_file(self._cursor_file, msgspec.json.encode(self._cursor))
        return sent

    def _send_start(self) -> None:
        if self._cursor.started:
            return
        record = read_record(self._folder)
        text = yaml.safe_dump(record.run_file, sort_keys=False, allow_unicode=True)
        self._tracker.text("run file", text, step=0, at_s=record.created_at_s)
        self._cursor.started = True

    def _send_evaluations(self) -> None:
        evaluations = list(read_events(self._folder, "evaluation"))
        for event in evaluations[self._cursor.evaluations :]:
            step = parse_version(event["version"]).step
            values = finite(
                numbers({name: event[name] for name in event if name != "at_s"}), section="evaluation"
            )
            self._tracker.numbers(values, step=step, at_s=event["at_s"])
        self._cursor.evaluations = max(len(evaluations), self._cursor.evaluations)

    def _send_objectives(self) -> None:
        """Values and error budgets that are left, at the step of the newest update."""
        record = read_slos(self._folder / "admission" / STATE_FILE)
        if record is None or record.at_s <= self._cursor.objectives_at_s:
            return
        values: dict[str, float] = {}
        for verdict in verdicts_of(record):
            if verdict.condition == "no_data":
                continue
            values[f"slo/{verdict.slo.name}/budget_left"] = verdict.budget_left
            if verdict.value is not None:
                values[f"slo/{verdict.slo.name}/value"] = verdict.value
        if values:
            self._tracker.numbers(values, step=self._cursor.last_step, at_s=record.at_s)
        self._cursor.objectives_at_s = record.at_s

    def _send_end(self) -> None:
        """The summary once the run ended, and again if it was resumed and ended again."""
        summary = read_summary(self._folder)
        if summary is None:
            return
        written_at_s = (self._folder / SUMMARY_JSON).stat().st_mtime
        if written_at_s <= self._cursor.ended_at_s:
            return
        told = {name: value for name, value in summary.items() if name != "values"}
        text = msgspec.json.format(msgspec.json.encode(told), indent=2).decode()
        self._tracker.text("summary", text, step=self._cursor.last_step, at_s=written_at_s)
        self._cursor.ended_at_s = written_at_s


def finite(values: Mapping[str, float], *, section: str) -> dict[str, float]:
    """The finite ones, under their section."""
    return {f"{section}/{name}": value for name, value in values.items() if math.isfinite(value)}
