"""What the page shows of one run besides its curves: facts, the moment, objectives, and the flow of work."""

import time
from pathlib import Path
from typing import Any

import yaml

from tidegate.admission.slo_file import STATE_FILE, read_slos, verdicts_of
from tidegate.cli.accounting import journal_path, ledger_path
from tidegate.cli.explain import diagnosis_of
from tidegate.cli.report.data import Points, flow_of, flow_start_s
from tidegate.cli.run_list import line_of
from tidegate.cli.samples import last_working_sample, numbers
from tidegate.cli.slo import objective_text
from tidegate.cli.thinning import thin
from tidegate.cli.ui.copies import read_copies
from tidegate.cli.up.summary import read_summary
from tidegate.core.balance import is_measured
from tidegate.core.errors import CorruptionError
from tidegate.launch.run_folder import read_plan, read_processes
from tidegate.runtime.run_event_log import read_events
from tidegate.trajectory_store.followed_timeline import FollowedTimeline

STORE_FOLDER = "trajectory_store"
# Points of a curve of the flow.
FLOW_POINTS_MAX = 320
# Of the newest evaluations.
EVALUATIONS_MAX = 2000
# Signals of the moment, in the order of the loop.
SIGNALS = (
    "actor_steps_per_s",
    "actor_busy_ratio",
    "actor_gpu_busy_ratio",
    "learner_samples_per_s",
    "learner_idle_ratio",
    "learner_gpu_busy_ratio",
    "learner_mfu",
    "running",
    "in_flight",
    "unscored",
    "unstored",
    "available",
    "lag_mean",
    "lag_max",
    "publish_lag",
    "weight_pull_ms",
)


def facts_of(folder: Path) -> dict[str, Any]:
    """The run file, the line of the list, processes, evaluations and, of a run that ended, its summary.

    Raises:
        NotFoundError, StaleFolderError, CorruptionError, ConfigError: ``run.json`` cannot be read.
    """
    record, plan = read_plan(folder)
    processes = read_processes(folder)
    evaluations = list(read_events(folder, "evaluation"))[-EVALUATIONS_MAX:]
    return {
        "line": line_of(folder),
        "forked_from": record.forked_from,
        "target": plan.file.until if processes is None else processes.target,
        "kind": plan.file.workload.kind,
        "batch_size": plan.file.batch_size,
        "max_running": plan.file.limits().max_running,
        "processes": {} if processes is None else processes.processes,
        "evaluations": evaluations,
        "summary": _summary(folder),
        "run_file": yaml.safe_dump(record.run_file, sort_keys=False, allow_unicode=True),
    }


def moment_of(folder: Path) -> dict[str, Any]:
    """The bottleneck with its fix, signals and objectives of the moment; of a run that ended, from while it trained."""
    sample = last_working_sample(folder)
    copies = _copy_problems(folder)
    if sample is None:
        return {"at_s": None, "signals": {}, "objectives": _objectives(folder), "problems": copies}
    found = numbers(sample)
    diagnosis = diagnosis_of(sample)
    return {
        "at_s": sample.get("at_s"),
        "bottleneck": diagnosis.bottleneck,
        "sentence": diagnosis.sentence,
        "fix": diagnosis.fix,
        "problems": [*diagnosis.problems, *copies],
        "admission_state": sample.get("admission_state", ""),
        "paused": bool(sample.get("paused")),
        "max_lag": sample.get("max_lag"),
        "serving_step": found.get("actor.serving_step"),
        "signals": {name: found[name] for name in SIGNALS if name in found and is_measured(name, found)},
        "objectives": _objectives(folder),
    }


def _copy_problems(folder: Path) -> list[str]:
    """Of a run in a cluster: which records of the page are old, since when, and why."""
    copies = read_copies(folder)
    if copies is None:
        return []
    return [
        f"The records of {service} are "
        + (f"{time.time() - copies.at_s[service]:,.0f} s old" if service in copies.at_s else "not here yet")
        + f": {problem}"
        for service, problem in sorted(copies.problems.items())
    ]


def _objectives(folder: Path) -> list[dict[str, Any]]:
    record = read_slos(folder / "admission" / STATE_FILE)
    verdicts = verdicts_of(record) if record is not None else []
    return [
        {
            "name": verdict.slo.name,
            "objective": objective_text(verdict.slo),
            "condition": verdict.condition,
            "value": verdict.value,
            "unit": verdict.slo.unit,
            "budget_left": verdict.budget_left,
        }
        for verdict in verdicts
    ]


class WorkFlowAnswer:
    """The ledger of one run as a flow: trajectories by state, depths and rates over time, seconds in each stage."""

    def __init__(self, folder: Path) -> None:
        """``folder``: the run's."""
        self._folder = folder
        self._timeline = FollowedTimeline(ledger_path(folder))
        self._read_at: list[int] = []
        self._answer: dict[str, Any] = {}

    def answer(self) -> dict[str, Any]:
        """The flow, made again only if the files of ledger or journal changed.

        ``num_unread``: of a ledger so large that it takes several calls, the rows that the next ones read; until then
        there is no flow.

        Raises:
            StaleFolderError, CorruptionError: journal or ledger cannot be read.
        """
        changed_at = self._changed_at()
        if not self._answer or self._answer["num_unread"] or changed_at != self._read_at:
            self._answer = self._made()
            self._read_at = changed_at
        return self._answer

    def _changed_at(self) -> list[int]:
        databases = (ledger_path(self._folder), journal_path(self._folder))
        files = [path for each in databases for path in (each, each.with_name(f"{each.name}-wal"))]
        return [path.stat().st_mtime_ns for path in files if path.exists()]

    def _made(self) -> dict[str, Any]:
        record, _ = read_plan(self._folder)
        journal, ledger = journal_path(self._folder), ledger_path(self._folder)
        nothing: dict[str, Any] = {"states": {}, "depths": {}, "rates": {}, "stages_s": {}, "num_unread": 0}
        start_s = flow_start_s(journal, ledger) if journal.exists() and ledger.exists() else None
        if start_s is None:
            return {**nothing, "started_at_s": record.created_at_s}
        found = self._timeline.follow(start_s=start_s)
        if found.num_unread or found.end_s is None:
            return {**nothing, "started_at_s": start_s, "num_unread": found.num_unread}
        flow = flow_of(journal, found.timeline, start_s=start_s, end_s=found.end_s, slice_s=found.slice_s)
        return {
            "states": found.states,
            "started_at_s": start_s,
            "depths": {name: _curve(points) for name, points in flow.depths.items()},
            "rates": {name: _curve(points) for name, points in flow.rates.items()},
            "stages_s": {name: _curve(points) for name, points in flow.stages_s.items()},
            "num_unread": 0,
        }


def _curve(points: Points) -> dict[str, list[float]]:
    thinned = thin(points, most=FLOW_POINTS_MAX)
    return {"at_s": [round(at_s, 3) for at_s, _ in thinned], "value": [value for _, value in thinned]}


def _summary(folder: Path) -> dict[str, Any] | None:
    """The summary without its statistics, of which the page shows none."""
    try:
        summary = read_summary(folder)
    except CorruptionError as error:
        return {"problem": str(error)}
    return None if summary is None else {name: value for name, value in summary.items() if name != "values"}
