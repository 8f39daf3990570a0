"""The end of a run in numbers: on the terminal, as ``summary.json``, and as the last line for ``--json``."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tidegate.catalogue import actor as actor_stats
from tidegate.catalogue import learner as learner_stats
from tidegate.cli.accounting import RunAccounting
from tidegate.cli.audit import one_line
from tidegate.cli.up.history import last_update
from tidegate.cli.up.view import clock, number
from tidegate.core.audit import Audit
from tidegate.core.errors import CorruptionError, TidegateError
from tidegate.core.receipt import Receipt, Usage, cost_line
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.session import RunOutcome, RunSession
from tidegate.runtime.best_version import BestVersion, read_best
from tidegate.runtime.files import replace_file

SUMMARY_JSON = "summary.json"
ENDINGS: dict[str, str] = {
    "target": "the target was reached",
    "time": "the time limit was reached",
    "interrupted": "interrupted",
    "failed": "it could not go on",
}


class LagSummary(msgspec.Struct, frozen=True):
    """``stale_by_versions`` of everything trained in the surviving lineage, from the ledger."""

    max_lag: int
    mean: float
    p95: int
    max: int
    trained_by_lag: dict[int, int]


class Summary(msgspec.Struct, frozen=True):
    """The result of a run. Times in seconds since ``up`` began; rates from the first gradient to the end of training.

    ``env_steps`` are trained ones, ``generated_steps`` those that actors generated since ``up`` began;
    ``cpu_s`` is of the whole process tree, ``first_gradient_cpu_s`` its part until the first gradient.
    ``verifier_problem``: how many verdicts of verifiers failed, and the most frequent reason; empty without any.
    ``curriculum_problem``: how often a curriculum of one's own failed, and the newest reason; empty without any.
    ``usage``: of this start and those before it; ``receipt``: of the whole run, None where the ledger cannot be read.
    ``values`` are all statistics at the end.
    """

    run_id: str
    forked_from: str
    folder: str
    target: str
    reached: bool
    succeeded: bool
    ended_by: str
    problem: str
    elapsed_s: float
    first_gradient_s: float | None
    first_gradient_cpu_s: float | None
    version: str
    versions: int
    env_steps: int
    generated_steps: int
    steps_per_s: float | None
    steps_per_cpu_s: float | None
    cpu_s: float
    mean_return: float | None
    evaluation_return: float | None
    solved_share: float | None
    lag: LagSummary | None
    audit: Audit | None
    audit_line: str
    restarts: dict[str, int]
    memory_peak_mb: dict[str, float]
    memory_mb: float
    report: str
    notes: list[str]
    verifier_problem: str
    usage: Usage
    receipt: Receipt | None
    values: dict[str, float]
    best: BestVersion | None = None
    curriculum_problem: str = ""

    def to_json(self) -> str:
        """One line of JSON."""
        return msgspec.json.encode(self).decode()


def summarise(
    session: RunSession,
    outcome: RunOutcome,
    audited: RunAccounting | TidegateError,
    *,
    target_required: bool,
    report: Path,
    usage: Usage,
    receipt: Receipt | None,
) -> Summary:
    """Summarise a run that ended. ``audited``: its accounting, or why there is none.

    A run that its time limit ended succeeded if it trained, unless there is a target and it is ``target_required``.
    """
    notes = list(outcome.notes)
    accounting = None if isinstance(audited, TidegateError) else audited
    audit_line = str(audited) if isinstance(audited, TidegateError) else one_line(audited)
    first, last, values = outcome.first, outcome.last, outcome.values
    reached = outcome.ended_by == "target"
    steps, seconds, cpu_s = (
        (last.trained_steps - first.trained_steps, last.at_s - first.at_s, last.cpu_s - first.cpu_s)
        if first is not None
        else (0.0, 0.0, 0.0)
    )
    balanced = accounting is not None and accounting.audit.balanced
    in_time = outcome.ended_by == "time" and first is not None
    may_end_in_time = not (target_required and session.target.conditions)
    # Statistics end before the drain; the learner's log has the updates made meanwhile.
    update = last_update(session.folder)
    return Summary(
        run_id=session.record.run_id,
        forked_from=session.record.forked_from,
        folder=str(session.folder),
        target=str(session.target),
        reached=reached,
        succeeded=(reached or (in_time and may_end_in_time)) and balanced,
        ended_by=outcome.ended_by,
        problem=outcome.problem,
        elapsed_s=outcome.ended_at_s - session.started_at_s,
        first_gradient_s=first.at_s - session.started_at_s if first is not None else None,
        first_gradient_cpu_s=first.cpu_s if first is not None else None,
        version=outcome.version,
        versions=int(update.get("step", values.get(learner_stats.VERSION_STEP, 0.0))),
        env_steps=int(update.get("env_steps", values.get(learner_stats.TRAINED_STEPS, 0.0))),
        generated_steps=int(outcome.generated_steps),
        steps_per_s=steps / seconds if seconds > 0 else None,
        steps_per_cpu_s=steps / cpu_s if cpu_s > 0 else None,
        cpu_s=outcome.cpu_s,
        mean_return=values.get(learner_stats.MEAN_RETURN),
        evaluation_return=values.get(actor_stats.EVALUATION_RETURN),
        solved_share=values.get("solved_share"),
        lag=_lags(accounting, session.plan) if accounting else None,
        audit=accounting.audit if accounting is not None else None,
        audit_line=audit_line,
        restarts={name: count for name, count in outcome.restarts.items() if count},
        memory_peak_mb=outcome.memory_peak_mb,
        memory_mb=sum(outcome.memory_peak_mb.values()),
        report=str(report),
        notes=notes,
        verifier_problem=outcome.verifier_problem,
        curriculum_problem=outcome.curriculum_problem,
        usage=usage,
        receipt=receipt,
        values=values,
        best=read_best(session.folder / "weight_distribution"),
    )


def _lags(accounting: RunAccounting, plan: RunPlan) -> LagSummary | None:
    """Against the widest budget that was in force: a running platform takes over another one."""
    widest = accounting.audit.max_lag
    return lag_summary(
        accounting.ledger.trained_by_lag, max_lag=plan.file.staleness.max_lag if widest is None else widest
    )


def lag_summary(trained_by_lag: dict[int, int], *, max_lag: int) -> LagSummary | None:
    """Mean, 95th percentile (nearest rank) and maximum of a histogram; None when nothing was trained."""
    total = sum(trained_by_lag.values())
    if not total:
        return None
    ordered = sorted(trained_by_lag.items())
    rank = math.ceil(0.95 * total)
    seen = 0
    p95 = ordered[-1][0]
    for lag, count in ordered:
        seen += count
        if seen >= rank:
            p95 = lag
            break
    mean = sum(lag * count for lag, count in ordered) / total
    return LagSummary(max_lag=max_lag, mean=mean, p95=p95, max=ordered[-1][0], trained_by_lag=dict(ordered))


def write_summary(folder: Path, summary: Summary) -> None:
    """Write ``summary.json``, whole or not at all.

    Raises:
        OSError: the disk is full.
    """
    text = msgspec.json.format(msgspec.json.encode(summary), indent=2)
    replace_file(folder / SUMMARY_JSON, text + b"\n")


def read_summary(folder: Path) -> dict[str, Any] | None:
    """``summary.json`` of a folder; None before its run ended.

    Raises:
        CorruptionError: the file is damaged.
    """
    path = folder / SUMMARY_JSON
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptionError(
            f"{path} cannot be read",
            why=str(error),
            fix=f"the run's data is apart from it: see `tidegate audit --dir {folder}` and `tidegate report`",
        ) from error


def render_summary(summary: Summary) -> Panel:
    """The summary for a terminal."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bright_black", no_wrap=True)
    rows.add_column(overflow="fold")
    for label, text in _rows(summary):
        rows.add_row(label, Text(text))
    mark, style = ("✓", "green") if summary.succeeded else ("✗", "red")
    if summary.succeeded and summary.target and not summary.reached:
        mark, style = "–", "yellow"
    title = Text(f"{mark} {summary.run_id}", style=f"bold {style}")
    return Panel(rows, title=title, title_align="left", border_style=style, expand=False, padding=(1, 2))


def _rows(summary: Summary) -> list[tuple[str, str]]:
    target = f"{summary.target} – " if summary.target else "none – "
    first = (
        f", first gradient after {summary.first_gradient_s:.1f} s and {summary.first_gradient_cpu_s:.1f} CPU-s"
        if summary.first_gradient_s is not None
        else ""
    )
    rows = [
        ("target", f"{target}{ENDINGS.get(summary.ended_by, summary.ended_by)}"),
        ("time", f"{clock(summary.elapsed_s)} min{first}; {summary.cpu_s:.0f} CPU-s in all processes"),
    ]
    if summary.forked_from:
        rows.append(("forked from", summary.forked_from))
    if summary.problem:
        rows.append(("problem", summary.problem))
    if summary.verifier_problem:
        rows.append(("verifiers", summary.verifier_problem))
    if summary.curriculum_problem:
        rows.append(("curriculum", summary.curriculum_problem))
    if summary.mean_return is not None:
        rows.append(("mean return", number(summary.mean_return)))
    if summary.evaluation_return is not None:
        rows.append(("evaluation", _evaluation(summary.evaluation_return, summary.values)))
    if summary.solved_share is not None:
        rows.append(("solved share", number(summary.solved_share)))
    if summary.best is not None:
        best = summary.best
        rows.append(("best", f"{best.version}, {best.measure} {number(best.score)}"))
    rows.append(("steps", f"{summary.env_steps:,} trained in {summary.versions:,} versions{_rates(summary)}"))
    if summary.lag is not None:
        lag = summary.lag
        rows.append(("lag", f"mean {lag.mean:.2f}, p95 {lag.p95}, max {lag.max} of max_lag {lag.max_lag}"))
    rows.append(("audit", summary.audit_line))
    if summary.receipt is not None and summary.receipt.price != "examples":
        rows.append(("cost", _cost(summary.receipt)))
    restarts = ", ".join(f"{name} {count}" for name, count in summary.restarts.items())
    rows.append(("restarts", restarts or "none"))
    largest = sorted(summary.memory_peak_mb.items(), key=lambda item: -item[1])
    each = ", ".join(f"{name} {memory_mb:.0f}" for name, memory_mb in largest)
    rows.append(("memory", f"peak {summary.memory_mb:.0f} MB: {each}"))
    rows += [("note", note) for note in summary.notes]
    rows.append(("report", summary.report))
    return rows


def _cost(receipt: Receipt) -> str:
    return f"{cost_line(receipt)}; {receipt.wasted_share:.1%} of the {receipt.unit} dropped"


def _evaluation(mean: float, values: Mapping[str, float]) -> str:
    low, high, episodes = (
        values.get(name, math.nan)
        for name in (
            actor_stats.EVALUATION_RETURN_MIN,
            actor_stats.EVALUATION_RETURN_MAX,
            actor_stats.EVALUATION_EPISODES,
        )
    )
    return f"mean return {number(mean)}, {number(low)} to {number(high)}, of {episodes:.0f} greedy episodes"


def _rates(summary: Summary) -> str:
    if summary.steps_per_s is None or summary.steps_per_cpu_s is None:
        return ""
    return f"; {summary.steps_per_s:,.0f} per second, {summary.steps_per_cpu_s:,.0f} per CPU-second"
