"""``tidegate slo``: the objectives of a run, their error budgets, and the cause of each last breach."""

import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from tidegate.admission.slo_file import STATE_FILE, read_slos, verdicts_of
from tidegate.cli.console import open_console
from tidegate.cli.queries import ask_admission
from tidegate.cli.run_argument import RunArgument, RunOption, named_run
from tidegate.cli.up.chart import bar
from tidegate.core.errors import NotFoundError
from tidegate.core.slo import Condition, Slo, Verdict, headline
from tidegate.launch.run_folder import find_folder, is_running, read_record
from tidegate.wire.clients.admission import AdmissionClient

STYLES: dict[Condition, str] = {
    "ok": "green",
    "burning": "yellow",
    "breached": "bold red",
    "no_data": "bright_black",
}
BAR_WIDTH = 10
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0


class SloAnswer(msgspec.Struct, frozen=True):
    """The answer of ``slo --json``. ``headline`` is what ``status`` shows; of a stopped run the state at its end."""

    run_id: str
    running: bool
    headline: str
    slos: list[Verdict]


def slo(
    run: RunArgument = None,
    folder: RunOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Report each objective: its bound, its value, the error budget left and the burn rates."""
    where = find_folder(named_run(run, folder))
    running = is_running(where)
    verdicts = read_verdicts(where)
    answer = SloAnswer(read_record(where).run_id, running, headline(verdicts), verdicts)
    if json:
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
        return
    open_console().print(render(answer, now_s=time.time()))


def read_verdicts(folder: Path) -> list[Verdict]:
    """The verdicts on the objectives of a run: queried while it runs, read from its folder afterwards.

    Raises:
        NotFoundError: admission never wrote any.
    """
    return ask_admission(folder, AdmissionClient.slos, otherwise=slos_of_file)


def slos_of_file(folder: Path) -> list[Verdict]:
    """The verdicts that admission wrote last.

    Raises:
        NotFoundError: admission never wrote any.
    """
    record = read_slos(folder / "admission" / STATE_FILE)
    if record is None:
        raise NotFoundError(
            f"{folder} has no record of its objectives",
            why="admission wrote none: it never ran, or was an older version",
            fix="see logs/admission.log",
        )
    return verdicts_of(record)


def render(answer: SloAnswer, *, now_s: float) -> Table:
    """A row for each objective; burn rates over a twelfth of the window and over its last moments."""
    state = "" if answer.running else ", at its end"
    table = Table(
        title=f"objectives of {answer.run_id}{state}: {answer.headline}",
        title_justify="left",
        box=None,
        padding=(0, 2),
    )
    for name, right in (("objective", False), ("bound", False), ("now", True), ("state", False)):
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    table.add_column("budget left", no_wrap=True)
    table.add_column("burn", justify="right", no_wrap=True)
    table.add_column("last breach", style="bright_black", overflow="fold")
    for verdict in answer.slos:
        style = STYLES[verdict.condition]
        table.add_row(
            verdict.slo.name,
            objective_text(verdict.slo),
            "–" if verdict.value is None else _number(verdict.value),
            Text(verdict.condition.replace("_", " "), style=style),
            _budget(verdict, style=style),
            f"{verdict.burn_long:.1f} / {verdict.burn_short:.1f}",
            _breach(verdict, now_s=now_s),
        )
    return table


def objective_text(slo: Slo) -> str:
    """The objective as text: ``≤ 4 versions for 95% over 10 min``."""
    sign = "≤" if slo.direction == "at_most" else "≥"
    unit = f" {slo.unit}" if slo.unit not in ("", "share") else ""
    bound = f"{slo.bound:.0%}" if slo.unit == "share" else _number(slo.bound)
    return f"{sign} {bound}{unit} for {100 * slo.target:g}% over {_time(slo.window_s)}"


def _budget(verdict: Verdict, *, style: str) -> Text:
    filled, empty = bar(verdict.budget_left, width=BAR_WIDTH)
    left = f"{verdict.budget_left:.0%}" if verdict.budget_left > -10 else "spent"
    return Text.assemble((filled, style), (empty, "bright_black"), f" {left}")


def _breach(verdict: Verdict, *, now_s: float) -> str:
    breach = verdict.last_breach
    if breach is None:
        return ""
    value = "" if breach.value is None else f" at {_number(breach.value)}"
    return f"{_time(max(0.0, now_s - breach.at_s))} ago{value}; {breach.cause}"


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _time(seconds: float) -> str:
    for size_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if seconds >= size_s:
            return f"{seconds / size_s:.3g} {unit}"
    return f"{seconds:.0f} s"
