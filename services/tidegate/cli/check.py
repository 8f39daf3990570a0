"""``tidegate check``: whether a run file can work, before anything of it starts."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tidegate.cli.env import render as describe_environment
from tidegate.cli.json_output import write_json
from tidegate.cli.run_argument import SetOption
from tidegate.launch.run_check import RunReport, check_run
from tidegate.launch.run_file import read_run_file
from tidegate.launch.run_plan import RunPlan


def check(
    run: Annotated[Path, typer.Argument(help="Run file.", metavar="RUN")],
    set_: SetOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check everything that `tidegate up` refuses before anything starts; start and keep nothing.

    Reads every section and what they need of each other, opens the environment once and builds the policy for it, or
    reads the prompts, and looks at a pretrained model. Exits 0, or 2 with the reason on standard error.
    """
    plan = read_run_file(run, set_ or [])
    report = asyncio.run(check_run(plan))
    if json:
        write_json(report)
        return
    console = Console()
    console.print(f"{run} can run", highlight=False, soft_wrap=True)
    console.print(render(report, plan), highlight=False)


def render(report: RunReport, plan: RunPlan) -> Table:
    """The report in words, a row a fact."""
    if report.environment is not None:
        table = describe_environment(report.environment, plan.file.policy)
    else:
        table = Table.grid(padding=(0, 2))
        table.add_row("prompts", plan.file.workload.dataset.path or report.workload)
        table.add_row("policy", report.policy)
    if report.model is not None:
        model = report.model
        table.add_row("model", f"{model.architecture}, {model.size_bytes / 1e9:,.1f} GB in {model.folder}")
    table.add_row("target", report.target or "none")
    return table
