"""``tidegate explain``."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.cli.console import open_console
from tidegate.cli.queries import ask_admission
from tidegate.cli.run_argument import RunFolderOption
from tidegate.cli.samples import last_working_sample, numbers
from tidegate.cli.slo import objective_text, read_verdicts
from tidegate.cli.trajectory_history import read_trajectory_history, sentence
from tidegate.core.balance import Signals, diagnose, is_measured
from tidegate.core.errors import NotFoundError
from tidegate.core.fixes import Advice, Fix, advise, gain_of
from tidegate.core.prices import dollars
from tidegate.core.slo import Verdict
from tidegate.core.slo_catalogue import REMEDIES
from tidegate.launch.cluster import POD_DATA, is_cluster
from tidegate.launch.dial import dial_notice
from tidegate.launch.run_folder import find_folder, is_running, read_plan
from tidegate.runtime.backup_state import backup_sentence, read_state
from tidegate.runtime.disk import disk_problem
from tidegate.wire.clients.admission import AdmissionClient, BottleneckReport

# Signals worth a line, in the order of the loop; the others are in --json.
SHOWN = (
    "actor_steps_per_s",
    "actor_wait_task_ratio",
    "actor_wait_policy_ratio",
    "actor_wait_inference_ratio",
    "inference_busy_ratio",
    "inference_waiting",
    "actor_gpu_busy_ratio",
    "learner_samples_per_s",
    "learner_idle_ratio",
    "learner_gpu_busy_ratio",
    "learner_mfu",
    "queue_depth_batches",
    "running",
    "in_flight",
    "lag_mean",
    "lag_max",
    "publish_lag",
)


def explain(
    trajectory_id: Annotated[
        str | None,
        typer.Argument(help="Explain why this trajectory was dropped or trained.", metavar="TRAJECTORY_ID"),
    ] = None,
    folder: RunFolderOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Name the bottleneck, its cheapest fix and the cost; or, with an id, the outcome of a trajectory and its reason.

    Prices come from the section `prices` of the run file.
    """
    where = find_folder(folder)
    if trajectory_id is not None:
        history = read_trajectory_history(where, trajectory_id)
        answer: dict[str, Any] = {**msgspec.to_builtins(history), "sentence": sentence(history)}
        _print(answer, Text(answer["sentence"]), json=json)
        return
    diagnosis = ask_admission(where, AdmissionClient.diagnose, otherwise=diagnosis_of_samples)
    broken = broken_objectives(where)
    record, plan = read_plan(where)
    advice = advise(signals_of(diagnosis.signals), prices=plan.file.prices, workloads=record.workloads)
    dial = dial_notice(plan)
    disk = "" if is_cluster(where) else disk_problem(where)
    noted = read_state(POD_DATA if is_cluster(where) else where)
    backup = backup_sentence(noted, running=is_running(where), now_s=time.time())
    answer = {
        **msgspec.to_builtins(diagnosis),
        "advice": msgspec.to_builtins(advice),
        "objectives": msgspec.to_builtins(broken),
        "disk": disk,
        "dial": dial,
        "backup": backup,
    }
    _print(answer, render(diagnosis, advice, broken, disk=disk, dial=dial, backup=backup), json=json)


def _print(answer: dict[str, Any], text: RenderableType, *, json: bool) -> None:
    if json:
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    else:
        open_console().print(text, soft_wrap=True)


class BrokenObjective(msgspec.Struct, frozen=True):
    """An objective that burns or is breached, with a description and a remedy."""

    name: str
    sentence: str
    fix: str


def broken_objectives(folder: Path) -> list[BrokenObjective]:
    """Objectives that burn or are breached, now or at the end of the run; none where admission keeps no objectives."""
    try:
        verdicts = read_verdicts(folder)
    except NotFoundError:
        return []
    return [
        BrokenObjective(verdict.slo.name, _broken(verdict), REMEDIES.get(verdict.slo.name, ""))
        for verdict in verdicts
        if verdict.condition in ("burning", "breached")
    ]


def _broken(verdict: Verdict) -> str:
    breach = verdict.last_breach
    value = verdict.value if breach is None or breach.value is None else breach.value
    found = "" if value is None else f" at {value:.3g}"
    cause = f": {breach.cause}" if breach is not None else ""
    return f"{verdict.condition}{found}, objective {objective_text(verdict.slo)}{cause}"


def diagnosis_of_samples(folder: Path) -> BottleneckReport:
    """The diagnosis from the last sample that admission wrote while the run worked.

    Raises:
        NotFoundError: admission never wrote a sample.
    """
    sample = last_working_sample(folder)
    if sample is None:
        raise NotFoundError(
            f"{folder} has no samples to explain yet",
            why="admission wrote no sample",
            fix="see logs/admission.log",
        )
    return diagnosis_of(sample)


def diagnosis_of(sample: dict[str, Any]) -> BottleneckReport:
    """The diagnosis of one sample of admission."""
    known = {name: sample[name] for name in Signals.__struct_fields__ if name in sample}
    found = diagnose(msgspec.convert(known, Signals))
    problems = [str(each) for each in sample.get("problems", ())]
    return BottleneckReport(found.bottleneck, found.sentence, found.fix, numbers(known), problems=problems)


def signals_of(numbers_by_name: dict[str, float]) -> Signals:
    """The signals of a diagnosis; names that this version does not know are ignored, and texts are not transferred."""
    defaults = Signals()
    fields: dict[str, Any] = {
        name: type(getattr(defaults, name))(numbers_by_name[name])
        for name in Signals.__struct_fields__
        if name in numbers_by_name
    }
    return Signals(**fields)


def render(
    diagnosis: BottleneckReport,
    advice: Advice,
    broken: Sequence[BrokenObjective] = (),
    *,
    disk: str = "",
    dial: str = "",
    backup: str = "",
) -> RenderableType:
    """The bottleneck, its fix and cost, broken objectives, why the alternatives do not help, and the signals.

    ``disk``: why nothing can be written; it comes first, because nothing else helps. ``dial``: what else than
    ``max_lag`` bounds the overlap. ``backup``: the newest one as a sentence.
    """
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bright_black")
    rows.add_column(overflow="fold")
    if disk:
        rows.add_row("disk", Text(disk, style="bold red"))
    rows.add_row("bottleneck", Text(diagnosis.bottleneck, style="bold"))
    rows.add_row("because", Text(diagnosis.sentence))
    if advice.best is None:
        rows.add_row("fix", Text(diagnosis.fix or "nothing to fix"))
    else:
        rows.add_row("fix", Text(advice.sentence, style="bold"))
        for fix in advice.others:
            rows.add_row("or", Text(_priced(fix)))
    if dial:
        rows.add_row("max_lag", Text(dial, style="yellow"))
    for index, problem in enumerate(diagnosis.problems):
        rows.add_row("" if index else "problem", Text(problem, style="yellow"))
    if backup:
        rows.add_row("backup", Text(backup))
    if diagnosis.recommendation:
        rows.add_row("scale", Text(diagnosis.recommendation))
    for objective in broken:
        rows.add_row(objective.name.replace("_", " "), Text(objective.sentence, style="yellow"))
        rows.add_row("", Text(objective.fix))
    if advice.samples_per_s > 0.0:
        now = f"{dollars(advice.usd_per_h)} per hour, {dollars(advice.usd_per_million)} per million samples"
        rows.add_row("cost now", Text(now))
    for lever, reason in advice.why_not.items():
        rows.add_row("not " + lever.replace("_", " "), Text(reason, style="bright_black"))
    for name in SHOWN:
        if name in diagnosis.signals and is_measured(name, diagnosis.signals):
            value = diagnosis.signals[name]
            text = f"{value:.0%}" if name.endswith(("_ratio", "_mfu")) else f"{value:,.1f}"
            rows.add_row(name.replace("_", " "), text)
    return rows


def _priced(fix: Fix) -> str:
    return f"{fix.action}: {gain_of(fix)} at {dollars(fix.usd_per_million)} per million samples"
