"""``tidegate report``, and the report at the end of ``up``."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.report.data import read_run
from tidegate.cli.report.page import render_page
from tidegate.launch.run_folder import REPORT_HTML, find_folder
from tidegate.runtime.files import replace_file


def report(
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Run folder (default: the newest below .tidegate/runs).")
    ] = None,
) -> None:
    """Write report.html into the folder of a running or stopped run."""
    sys.stdout.write(f"{write_report(find_folder(folder))}\n")


def write_report(folder: Path) -> Path:
    """Write the report of a run folder and return its path.

    Raises:
        NotFoundError: it is no run folder.
    """
    path = folder / REPORT_HTML
    replace_file(path, render_page(read_run(folder)).encode())
    return path
