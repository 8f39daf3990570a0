"""``tidegate receipt``: what a run trained, took, cost and wasted; also in the summary, the report and the trackers."""

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from tidegate.cli.accounting import ledger_path
from tidegate.cli.console import open_console
from tidegate.cli.json_output import write_json
from tidegate.cli.run_argument import RunArgument, RunOption, named_run
from tidegate.cli.up.history import last_update
from tidegate.cli.up.summary import read_summary
from tidegate.core.receipt import EndedTotal, Receipt, Usage, lines_of_receipt, receipt_of
from tidegate.core.records import DropReason
from tidegate.launch.local_files import require_local
from tidegate.launch.run_folder import find_folder, is_running, read_plan, read_processes
from tidegate.trajectory_store.ended_totals import ended_totals
from tidegate.trajectory_store.timeline import num_folded_rows


def receipt(
    run: RunArgument = None,
    folder: RunOption = None,
    usd_per_hour: Annotated[
        float | None,
        typer.Option(help="Price of the whole run an hour, instead of the run file's `prices`.", min=0.0),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what a run trained, how many hours it took, what that cost, and what was dropped for which reason.

    CPU- and GPU-hours are known once a start ended; of a running one only its hours count.
    """
    found = read_receipt(find_folder(named_run(run, folder)), usd_per_h=usd_per_hour)
    if json:
        write_json(found)
        return
    table = Table(box=None, show_header=False, padding=(0, 2), title=found.run_id, title_justify="left")
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in lines_of_receipt(found):
        table.add_row(label, text)
    open_console().print(table)


def read_receipt(folder: Path, *, usd_per_h: float | None = None, usage: Usage | None = None) -> Receipt:
    """The receipt of a run folder, live or ended. ``usage``: if another one than that of its files.

    Raises:
        NotFoundError: it is no run folder.
        ConfigError: it is a run in a cluster, whose files are in its pods.
        StaleFolderError, CorruptionError: the ledger cannot be read.
    """
    record, plan = read_plan(folder)
    require_local(record, otherwise="see `tidegate explain`")
    unit = "steps" if plan.file.workload.kind == "segments" else "tokens"
    ledger = ledger_path(folder)
    trained, dropped, num_folded = EndedTotal(), dict[DropReason, EndedTotal](), 0
    if ledger.is_file():
        trained, dropped = ended_totals(ledger)
        num_folded = num_folded_rows(ledger)
    return receipt_of(
        record.run_id,
        unit=unit,
        steps=int(last_update(folder).get("env_steps", 0)),
        trained=trained,
        dropped=dropped,
        num_folded=num_folded,
        usage=usage if usage is not None else usage_now(folder),
        prices=plan.file.prices,
        replicas=plan.replicas,
        usd_per_h=usd_per_h,
    )


def usage_of_ended(folder: Path) -> Usage:
    """What the starts of a folder that ended took, from its summary."""
    kept = (read_summary(folder) or {}).get("usage")
    return Usage() if kept is None else msgspec.convert(kept, Usage)


def usage_now(folder: Path) -> Usage:
    """The same with the time of the start that is going on."""
    before, processes = usage_of_ended(folder), read_processes(folder)
    if processes is None or not is_running(folder):
        return before
    return before.with_start(elapsed_s=time.time() - processes.started_at_s, cpu_s=0.0, num_gpus=0)
