"""``tidegate audit``."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from tidegate.cli.accounting import RunAccounting, read_accounting
from tidegate.cli.audit_lines import lines_of
from tidegate.launch.run_folder import find_folder, read_record


def audit(
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Run folder (default: the newest below .tidegate/runs).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Reconcile the admission journal of the task queue with the ledger of the trajectory store.

    Works on running and stopped runs. Exits 0 if every admitted trajectory is accounted for once, else 1.
    """
    where = find_folder(folder)
    accounting = read_accounting(where)
    if json:
        sys.stdout.write(msgspec.json.encode(accounting.audit).decode() + "\n")
    else:
        Console().print(render(accounting, run_id=read_record(where).run_id), highlight=False)
    raise typer.Exit(0 if accounting.audit.balanced else 1)


def render(accounting: RunAccounting, *, run_id: str) -> Table:
    """The audit as a column of counts, with the verdict below."""
    audit = accounting.audit
    table = Table(
        title=f"audit of {run_id}", title_justify="left", box=None, show_header=False, padding=(0, 2)
    )
    table.add_column(justify="left")
    table.add_column(justify="right")
    table.add_column(style="bright_black")
    for line in lines_of(audit):
        table.add_row(f"  {line.name}" if line.is_part else line.name, f"{line.count:,}", line.note)
    verdict = "[bold green]balanced[/]" if audit.balanced else "[bold red]NOT balanced[/]"
    table.add_row(verdict, "", "; ".join(audit.problems))
    return table


def one_line(accounting: RunAccounting) -> str:
    """The audit for a summary."""
    audit = accounting.audit
    dropped = sum(audit.dropped.values())
    verdict = "balanced" if audit.balanced else f"NOT balanced ({'; '.join(audit.problems)})"
    replayed = "" if audit.replay is None else f"; units used {audit.replay.sampled:,}"
    return (
        f"{verdict}: {audit.admitted:,} admitted = {audit.trained:,} trained + {dropped:,} dropped"
        f" + {audit.in_flight:,} in flight; trained twice {audit.trained_twice}{replayed}"
    )
