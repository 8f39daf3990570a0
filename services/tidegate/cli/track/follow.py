"""Follows a run folder into a tracker, and remembers how far it came."""

import math
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from tidegate.admission.slo_file import STATE_FILE, read_slos, verdicts_of
from tidegate.cli.position_file import read_position
from tidegate.cli.receipt import read_receipt
from tidegate.cli.report.samples_section import shown_versions
from tidegate.cli.samples import numbers
from tidegate.cli.step_tail import StepTail, curves_of
from tidegate.cli.track.port import Ending, Tracker
from tidegate.cli.up.summary import SUMMARY_JSON, read_summary
from tidegate.cli.version_samples import read_samples_of, shortened
from tidegate.core.errors import CorruptionError, TidegateError
from tidegate.core.ids import LineageName, PolicyVersion, parse_version
from tidegate.core.slo import Condition
from tidegate.launch.run_folder import read_plan, read_record
from tidegate.runtime.evaluations import version_order
from tidegate.runtime.files import replace_file
from tidegate.runtime.run_event_log import read_events

# Samples are read from the ledger, which takes a while on a large one.
SAMPLES_PERIOD_S = 60.0
# Versions that wait for their samples; of these a few are shown.
PENDING_MAX = 10_000
# Of `ended_by` in the summary; every other one is a run that finished.
ENDINGS: Mapping[str, Ending] = {"failed": "failed", "interrupted": "killed"}
# As a curve, so that a tracker can mark it.
CONDITION_LEVELS: dict[Condition, float] = {"ok": 0.0, "burning": 1.0, "breached": 2.0}


class Cursor(msgspec.Struct):
    """How far a run was tracked: its updates and evaluations, and whether its texts were written.

    ``lineage_number``, ``last_step``: of the newest update, by ``version_order``: a learner that went back to a
    checkpoint makes lower steps again. ``evaluated_at_s``: of the newest evaluation; the log lets go of the oldest, so
    that their number says nothing.
    """

    run_id: str = ""
    lineage_number: int = 0
    last_step: int = 0
    evaluated_at_s: float = 0.0
    objectives_at_s: float = 0.0
    started: bool = False
    ended_at_s: float = 0.0


class TrackedRun:
    """Sends what is new in a run folder. A run that is tracked again goes on where it was.

    An update comes once, also after an error of the tracker, unless the process ends before the tracker has taken it.
    """

    def __init__(self, folder: Path, tracker: Tracker, cursor_file: Path) -> None:
        """``cursor_file``: where the position is kept, beside what the tracker writes."""
        self._folder = folder
        self._tracker = tracker
        self._cursor_file = cursor_file
        self._tail = StepTail(folder)
        self._updates: deque[dict[str, Any]] = deque()
        self._has_samples = read_plan(folder)[1].file.workload.kind == "text"
        self._updated_at_s = 0.0
        self._pending: deque[PolicyVersion] = deque(maxlen=PENDING_MAX)
        self._samples_at_s = float("-inf")
        self._cursor = read_position(cursor_file, Cursor(run_id=read_record(folder).run_id))

    @property
    def last_step(self) -> int:
        """Of the newest update that the tracker took."""
        return self._cursor.last_step

    def send_new(self, *, now_s: float, over: bool) -> int:
        """Send what is new, and keep the position; returns how many updates that were.

        ``over``: nothing is written any more.

        Raises:
            one of the tracker's errors: what was not sent comes at the next call.
        """
        try:
            self._send_start()
            sent = self._send_updates()
            self._send_evaluations()
            self._send_objectives()
            if (
                self._has_samples
                and self._pending
                and (over or now_s - self._samples_at_s > SAMPLES_PERIOD_S)
            ):
                self._send_samples(now_s=now_s)
            self._send_end()
        finally:
            # A tracker that refuses one thing, such as a table, has taken the others.
            self._tracker.flush()
            replace_file(self._cursor_file, msgspec.json.encode(self._cursor))
        return sent

    def ending(self) -> Ending:
        """How a run that is over ended. One that trained after its newest summary was killed before it wrote one."""
        with suppress(CorruptionError):
            summary = read_summary(self._folder)
            if summary is not None and self._updated_at_s <= self._summary_at_s():
                return ENDINGS.get(summary.get("ended_by", ""), "finished")
        return "killed"

    def _summary_at_s(self) -> float:
        return (self._folder / SUMMARY_JSON).stat().st_mtime

    def _send_start(self) -> None:
        if self._cursor.started:
            return
        record = read_record(self._folder)
        self._tracker.settings(record.run_file, at_s=record.created_at_s)
        self._cursor.started = True

    def _send_updates(self) -> int:
        sent = 0
        self._updates += self._tail.new()[1]
        while self._updates:
            update = self._updates[0]
            self._updated_at_s = max(self._updated_at_s, update["at_s"])
            # The log comes from its beginning after a rotation and at a new start.
            order = max((0, update["step"]), version_order(f"{update['lineage']}@{update['step']}"))
            if order > (self._cursor.lineage_number, self._cursor.last_step):
                values = finite(curves_of(update), section="train")
                self._tracker.numbers(values, step=update["step"], at_s=update["at_s"])
                self._cursor.lineage_number, self._cursor.last_step = order
                self._pending.append(PolicyVersion(LineageName(update["lineage"]), update["step"]))
                sent += 1
            self._updates.popleft()
        return sent

    def _send_evaluations(self) -> None:
        new = [
            event
            for event in read_events(self._folder, "evaluation")
            if event["at_s"] > self._cursor.evaluated_at_s
        ]
        for event in sorted(new, key=itemgetter("at_s")):
            step = parse_version(event["version"]).step
            values = finite(
                numbers({name: event[name] for name in event if name != "at_s"}), section="evaluation"
            )
            self._tracker.numbers(values, step=step, at_s=event["at_s"])
            self._cursor.evaluated_at_s = event["at_s"]

    def _send_objectives(self) -> None:
        """Values, conditions and error budgets that are left, at the step of the newest update."""
        record = read_slos(self._folder / "admission" / STATE_FILE)
        if record is None or record.at_s <= self._cursor.objectives_at_s:
            return
        values: dict[str, float] = {}
        for verdict in verdicts_of(record):
            if verdict.condition == "no_data":
                continue
            values[f"slo/{verdict.slo.name}/budget_left"] = verdict.budget_left
            values[f"slo/{verdict.slo.name}/condition"] = CONDITION_LEVELS[verdict.condition]
            if verdict.value is not None:
                values[f"slo/{verdict.slo.name}/value"] = verdict.value
        if values:
            self._tracker.numbers(values, step=self._cursor.last_step, at_s=record.at_s)
        self._cursor.objectives_at_s = record.at_s

    def _send_samples(self, *, now_s: float) -> None:
        """The best, the worst and a random completion of some of the versions since the last samples."""
        with suppress(
            TidegateError
        ):  # the ledger is not there yet, or the audit reports what is wrong with it
            for shown in read_samples_of(self._folder, shown_versions(list(self._pending))):
                rows = [
                    {
                        "version": str(shown.version),
                        "why": sample.why,
                        "reward": sample.record.reward,
                        "lag": sample.lag,
                        "tokens": sample.record.length_tokens,
                        "prompt": shortened(sample.record.prompt),
                        "completion": shortened(sample.record.completion),
                    }
                    for sample in shown.samples
                ]
                self._tracker.table("samples", rows, step=shown.version.step, at_s=now_s)
        self._pending.clear()
        self._samples_at_s = now_s

    def _send_end(self) -> None:
        """Receipt and summary once the run ended, and again if it was resumed and ended again."""
        summary = read_summary(self._folder)
        if summary is None:
            return
        written_at_s = self._summary_at_s()
        if written_at_s <= self._cursor.ended_at_s:
            return
        step = self._cursor.last_step
        told = {name: value for name, value in summary.items() if name not in ("values", "receipt")}
        self._tracker.text("summary", indented(told), step=step, at_s=written_at_s)
        with suppress(TidegateError):
            receipt = msgspec.to_builtins(read_receipt(self._folder))
            self._tracker.text("receipt", indented(receipt), step=step, at_s=written_at_s)
            values = finite(numbers(receipt), section="receipt")
            self._tracker.numbers(values, step=step, at_s=written_at_s)
        self._cursor.ended_at_s = written_at_s


def indented(document: Mapping[str, Any]) -> str:
    """A document as JSON for people."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def finite(values: Mapping[str, float], *, section: str) -> dict[str, float]:
    """The finite ones, under their section."""
    return {f"{section}/{name}": value for name, value in values.items() if math.isfinite(value)}
