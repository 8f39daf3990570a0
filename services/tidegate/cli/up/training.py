"""One run in its folder: trained to its target, summarised, reported."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec

from tidegate.cli.accounting import accounting_or_error
from tidegate.cli.console import open_console
from tidegate.cli.receipt import read_receipt, usage_of_ended
from tidegate.cli.up.history import last_update
from tidegate.cli.up.screen import LineScreen, LiveScreen
from tidegate.cli.up.summary import SUMMARY_JSON, Summary, render_summary, summarise, write_summary
from tidegate.core.errors import CorruptionError, TidegateError
from tidegate.core.receipt import Receipt, Usage
from tidegate.core.targets import RunTarget
from tidegate.launch import run_folder as folders
from tidegate.launch import usage
from tidegate.launch.companions import companions_beside, companions_of, declare_backups
from tidegate.launch.curriculum_trial import try_curriculum
from tidegate.launch.gpu_processes import count_gpu_processes
from tidegate.launch.live_run import Screen
from tidegate.launch.own_code import record_own_code
from tidegate.launch.own_code_loading import load_callbacks
from tidegate.launch.preflight import Preflight
from tidegate.launch.preparation import prepare_model, write_datasets
from tidegate.launch.run_plan import RunPlan
from tidegate.launch.run_record import RunRecord
from tidegate.launch.session import RunSession, run_to_end
from tidegate.launch.warmup_check import check_warmup
from tidegate.runtime.loading import load


def train(
    folder: Path,
    record: RunRecord,
    plan: RunPlan,
    target: RunTarget,
    *,
    limit_s: float | None,
    target_required: bool,
    preflight: Preflight | None,
    headless: bool,
    json: bool,
) -> bool:
    """Run the platform in its folder and print its summary; returns whether it succeeded (``summarise``).

    Raises:
        FolderInUseError: another process uses the folder.
        ConfigError: own code, a dataset or a model cannot be prepared.
        StaleFolderError: own code has changed since the folder was made.
        CorruptionError: the run ended, and its journal or ledger cannot be read; its summary is printed before.
        PreflightError: the environment, its settings or the policy cannot work.
    """
    session = RunSession(folder, record, plan, target, limit_s, usage.started_at_s())
    # They end after the lock does, which tells them that the run is over.
    with ExitStack() as beside:
        lock = folders.lock(folder)
        try:
            folder.chmod(0o700)  # it may have existed, open to all users of the machine
            record_own_code(plan, folder)
            load_callbacks(plan)
            companions = companions_of(plan, folder)
            declare_backups(plan, folder, run_id=record.run_id)
            started = beside.enter_context(companions_beside(companions, folder))
            prepare_model(plan)
            write_datasets(plan, folder / "data")
            try_curriculum(plan, folder / "data")
            if not last_update(folder):  # else the first version is made
                check_warmup(plan, folder / "data")
            session = msgspec.structs.replace(session, beside=started)
            outcome = run_to_end(session, _screen(headless=headless or json), preflight)
            accounting = accounting_or_error(folder)
            taken = usage_of_ended(folder).with_start(
                elapsed_s=outcome.ended_at_s - session.started_at_s,
                cpu_s=outcome.cpu_s,
                num_gpus=count_gpu_processes(folder),
            )
            summary = summarise(
                session,
                outcome,
                accounting,
                target_required=target_required,
                report=folder / folders.REPORT_HTML,
                usage=taken,
                receipt=_receipt(folder, taken),
            )
            _finish(folder, summary, json=json)
        finally:
            os.close(lock)
    if isinstance(accounting, CorruptionError):
        raise accounting
    return summary.succeeded


def _receipt(folder: Path, taken: Usage) -> Receipt | None:
    try:
        return read_receipt(folder, usage=taken)
    except TidegateError:  # the audit's line says what is wrong with the ledger
        return None


def _screen(*, headless: bool) -> Screen:
    console = open_console()
    return LineScreen() if headless or not console.is_terminal else LiveScreen(console)


def _finish(folder: Path, summary: Summary, *, json: bool) -> None:
    # Plots need more memory than the supervisor: they load when no process is left to supervise.
    write_report = load("tidegate.cli.report.command:write_report")
    for name, write in (
        (SUMMARY_JSON, lambda: write_summary(folder, summary)),
        (folders.REPORT_HTML, lambda: write_report(folder)),
    ):
        try:
            write()
        except (OSError, TidegateError) as error:  # a full disk, or what the audit reports
            sys.stderr.write(f"tidegate: {name} was not written: {error}\n")
    open_console().print(render_summary(summary))
    if summary.problem:
        sys.stderr.write(f"tidegate: {summary.problem}\n")
    if json:
        sys.stdout.write(f"{summary.to_json()}\n")
