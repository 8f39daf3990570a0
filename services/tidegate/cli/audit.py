"""``tidegate audit``."""

import sys
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from tidegate.cli.accounting import RunAccounting, read_accounting, verify_ledger
from tidegate.cli.audit_lines import lines_of
from tidegate.cli.console import open_console
from tidegate.cli.run_argument import RunArgument, RunOption, named_run
from tidegate.core.errors import ConfigError
from tidegate.core.verification import Verification
from tidegate.launch.run_folder import find_folder, read_record


def audit(
    run: RunArgument = None,
    folder: RunOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also hold the ledger and its payloads against their hash chain.")
    ] = False,
    head: Annotated[
        str,
        typer.Option(
            help="With --verify: a digest of the chain that was noted earlier, or its first digits."
        ),
    ] = "",
) -> None:
    """Reconcile the admission journal of the task queue with the ledger of the trajectory store.

    Works on running and stopped runs. Exits 0 if every admitted trajectory is accounted for once, 1 if not, 3 if
    journal or ledger is damaged. With --verify also 1 if a row, a use or a payload was
    changed, lost or invented since the store wrote it; each is named.
    """
    if head and not verify:
        raise ConfigError("--head needs --verify", fix="add --verify")
    where = find_folder(named_run(run, folder))
    accounting = read_accounting(where)
    verification = verify_ledger(where, head=head) if verify else None
    if json:
        found = msgspec.to_builtins(accounting.audit)
        if verification is not None:
            found["verification"] = msgspec.to_builtins(verification)
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    else:
        console = open_console()
        console.print(render(accounting, run_id=read_record(where).run_id))
        if verification is not None:
            for line in lines_of_verification(verification):
                console.print(line, soft_wrap=True)
    is_good = accounting.audit.balanced and (verification is None or verification.intact)
    raise typer.Exit(0 if is_good else 1)


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
    verdict = (
        Text("balanced", style="bold green") if audit.balanced else Text("NOT balanced", style="bold red")
    )
    table.add_row(verdict, "", "; ".join(audit.problems))
    return table


def lines_of_verification(found: Verification) -> list[str]:
    """What a verification found, a line each, the verdict last."""
    lines = [f"{each.kind}: {each.what}: {each.why}" for each in found.findings]
    if found.num_findings > len(lines):
        lines.append(f"and {found.num_findings - len(lines):,} more")
    seen = f"{found.num_entries:,} entries, {found.num_rows:,} rows, {found.num_payloads:,} payloads on disk"
    if found.num_folded:
        seen += f", {found.num_folded:,} rows folded into counters"
    verdict = "intact" if found.intact else f"NOT intact ({found.num_findings:,} findings)"
    return [*lines, f"ledger {verdict}: {seen}; head {found.head}"]


def one_line(accounting: RunAccounting) -> str:
    """The audit for a summary."""
    audit = accounting.audit
    dropped = sum(audit.dropped.values())
    verdict = "balanced" if audit.balanced else f"NOT balanced ({'; '.join(audit.problems)})"
    kept = ", kept for a resumed run" if audit.in_flight else ""
    replayed = "" if audit.replay is None else f"; units used {audit.replay.sampled:,}"
    return (
        f"{verdict}: {audit.admitted:,} admitted = {audit.trained:,} trained + {dropped:,} dropped"
        f" + {audit.in_flight:,} in flight{kept}; trained twice {audit.trained_twice}{replayed}"
    )
