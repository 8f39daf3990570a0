"""The data of a report, read from a run folder: accounting, learner steps and admission samples.

Times are seconds since the run's first admission. Queries group by time, so that a million trajectories
become a few hundred numbers.
"""

import time
from pathlib import Path
from typing import Any

import msgspec

from tidegate.cli.accounting import RunAccounting, journal_path, ledger_path, read_accounting
from tidegate.cli.receipt import read_receipt
from tidegate.cli.report.samples_section import shown_versions
from tidegate.cli.samples import numbers, read_samples
from tidegate.cli.up.history import read_steps
from tidegate.cli.up.summary import read_summary
from tidegate.cli.version_samples import VersionSamples, read_samples_of, versions_of
from tidegate.core.errors import CorruptionError, TidegateError
from tidegate.core.receipt import Receipt
from tidegate.launch.run_folder import is_running, read_plan
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.run_record import RunRecord
from tidegate.runtime.backup_state import backup_sentence, read_state
from tidegate.runtime.run_event_log import read_events
from tidegate.task_queue.journal_file import admitted_by_slice, first_admission_s
from tidegate.trajectory_store.timeline import (
    LedgerTimeline,
    first_kept_s,
    last_event_s,
    num_folded_rows,
    read_timeline,
)

Points = list[tuple[float, float]]

SLICES = 160
# Batches arrive at once: over a slice shorter than a few of them a rate is either 0 or far too high.
RATE_SLICES = 40
SLICE_S_MIN = 0.5


class WorkFlow(msgspec.Struct, frozen=True):
    """Depths, rates and stage durations of the flow of work, a value for each time slice."""

    depths: dict[str, Points]
    rates: dict[str, Points]
    stages_s: dict[str, Points]


class RunData(msgspec.Struct, frozen=True):
    """Everything a report needs; empty where the run wrote nothing. ``backup``: the newest one as a sentence."""

    record: RunRecord
    plan: RunPlan
    summary: dict[str, Any]
    accounting: RunAccounting | None
    steps: list[dict[str, Any]]
    started_at_s: float
    num_folded: int
    flow: WorkFlow
    samples: list[tuple[float, dict[str, float]]]
    evaluated: list[dict[str, Any]]
    completions: list[VersionSamples]
    receipt: Receipt | None
    backup: str

    def target(self) -> str:
        """The target of the run, as ``--until`` takes it."""
        return self.summary.get("target", self.plan.file.until)

    def step_series(self, name: str, *, over: str = "at_s") -> Points:
        """A field or a metric of the learner's steps over time (``at_s``), over ``env_steps`` or over ``step``."""
        offset = self.started_at_s if over == "at_s" else 0.0
        return [
            (float(step[over]) - offset, float(value))
            for step in self.steps
            if _is_number(value := step.get(name, step.get("metrics", {}).get(name)))
            and _is_number(step.get(over))
        ]

    def evaluations(self, name: str, *, over: str = "at_s") -> Points:
        """One number of the evaluations over time, or over the steps trained until their version was made."""
        events = [each for each in self.evaluated if _is_number(each.get(name))]
        if over == "at_s":
            return [(float(each["at_s"]) - self.started_at_s, float(each[name])) for each in events]
        trained = {f"{step['lineage']}@{step['step']}": float(step[over]) for step in self.steps}
        return [
            (trained.get(each["version"], 0.0), float(each[name]))
            for each in events
            if each["version"] in trained or each["version"].endswith("@0")
        ]

    def sample_series(self, name: str, *, while_working: bool = False) -> Points:
        """One number of admission's samples over time; ``while_working`` from the first gradient to the last only."""
        first_s, last_s = (self.steps[0]["at_s"], self.steps[-1]["at_s"]) if self.steps else (0.0, 0.0)
        return [
            (at_s - self.started_at_s, values[name])
            for at_s, values in self.samples
            if name in values and (not while_working or first_s <= at_s <= last_s)
        ]


def read_run(folder: Path) -> RunData:
    """Read a run folder, also of a run that failed early.

    Raises:
        NotFoundError: it is no run folder.
    """
    record, plan = read_plan(folder)
    try:
        accounting = read_accounting(folder)
    except TidegateError:
        accounting = None  # a run that failed to start still has a report
    steps = list(read_steps(folder))
    started_at_s, flow = (
        read_flow(folder, fallback_s=record.created_at_s) if accounting else (record.created_at_s, _EMPTY)
    )
    return RunData(
        record=record,
        plan=plan,
        summary=_summary(folder),
        accounting=accounting,
        steps=steps,
        started_at_s=started_at_s,
        num_folded=num_folded_rows(ledger_path(folder)) if accounting else 0,
        flow=flow,
        samples=[(float(sample["at_s"]), numbers(sample)) for sample in read_samples(folder)],
        evaluated=list(read_events(folder, "evaluation")),
        completions=read_samples_of(folder, shown_versions(versions_of(steps)))
        if accounting and plan.file.workload.kind != "segments"
        else [],
        receipt=read_receipt(folder) if accounting else None,
        backup=backup_sentence(read_state(folder), running=is_running(folder), now_s=time.time()),
    )


_EMPTY = WorkFlow(depths={}, rates={}, stages_s={})


def read_flow(folder: Path, *, fallback_s: float) -> tuple[float, WorkFlow]:
    """When the flow of work began, in seconds since the epoch (``fallback_s`` before it did), and the flow.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: journal or ledger cannot be read.
    """
    journal, ledger = journal_path(folder), ledger_path(folder)
    start_s, end_s = flow_start_s(journal, ledger), last_event_s(ledger)
    if start_s is None or end_s is None:
        return fallback_s, _EMPTY
    slice_s = max(SLICE_S_MIN, (end_s - start_s) / SLICES)
    timeline = read_timeline(ledger, start_s=start_s, slice_s=slice_s)
    return start_s, flow_of(journal, timeline, start_s=start_s, end_s=end_s, slice_s=slice_s)


def flow_start_s(journal: Path, ledger: Path) -> float | None:
    """When the flow of work begins: with the first admission, or with the oldest row that was not folded.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: journal or ledger cannot be read.
    """
    start_s = first_admission_s(journal)
    return None if start_s is None else max(start_s, first_kept_s(ledger) or start_s)


def flow_of(
    journal: Path, timeline: LedgerTimeline, *, start_s: float, end_s: float, slice_s: float
) -> WorkFlow:
    """The flow of work from a ledger's timeline, whose slices of ``slice_s`` begin at ``start_s``, and the journal.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError: the journal cannot be read.
    """
    admitted = admitted_by_slice(journal, start_s=start_s, slice_s=slice_s)
    counts = {**timeline.events, "admitted": admitted}
    num_slices = int((end_s - start_s) / slice_s) + 1
    admitted_before = sum(count for index, count in admitted.items() if index < 0)
    before = {"admitted": max(0, admitted_before - timeline.num_folded)}
    totals = {
        name: _cumulative(by_slice, num_slices, before=before.get(name, 0))
        for name, by_slice in counts.items()
    }
    times = [(index + 1) * slice_s for index in range(num_slices)]

    def between(earlier: str, later: str) -> Points:
        return [
            (at_s, float(max(0, first - second)))
            for at_s, first, second in zip(times, totals[earlier], totals[later], strict=True)
        ]

    rates = {
        name: _rates(counts[name], num_slices, slice_s=slice_s) for name in ("admitted", "stored", "ended")
    }
    return WorkFlow(
        depths={
            "in rollout": between("admitted", "stored"),
            "waiting for a batch": between("stored", "leased"),
            "in a batch": between("leased", "ended"),
        },
        rates={**rates, "trained steps": _rates(timeline.trained_steps, num_slices, slice_s=slice_s)},
        stages_s={
            name: [((index + 1) * slice_s, max(0.0, mean_s)) for index, mean_s in by_slice.items()]
            for name, by_slice in timeline.stages_s.items()
        },
    )


def _cumulative(by_slice: dict[int, int], num_slices: int, *, before: int) -> list[int]:
    total = before
    sums: list[int] = []
    for index in range(num_slices):
        total += by_slice.get(index, 0)
        sums.append(total)
    return sums


def _rates(by_slice: dict[int, int], num_slices: int, *, slice_s: float) -> Points:
    """Increase a second over stretches of slices; the last, which the run may not have filled, is left out."""
    stretch = max(1, num_slices // RATE_SLICES)
    return [
        (
            (start + stretch) * slice_s,
            sum(by_slice.get(index, 0) for index in range(start, start + stretch)) / (stretch * slice_s),
        )
        for start in range(0, num_slices - stretch, stretch)
    ]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _summary(folder: Path) -> dict[str, Any]:
    """The summary; empty before the run ended, or if the file is damaged: the report plots the other files."""
    try:
        return read_summary(folder) or {}
    except CorruptionError:
        return {}
