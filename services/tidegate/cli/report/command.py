"""``tidegate report``, and the report at the end of ``up``."""

import sys
from pathlib import Path

from tidegate.cli.report.data import read_run
from tidegate.cli.report.page import render_page
from tidegate.cli.run_argument import RunArgument, RunOption, named_run
from tidegate.launch.run_folder import REPORT_HTML, find_folder
from tidegate.runtime.files import replace_file


def report(
    run: RunArgument = None,
    folder: RunOption = None,
) -> None:
    """Write report.html into the folder of a running or stopped run."""
    sys.stdout.write(f"{write_report(find_folder(named_run(run, folder)))}\n")


def write_report(folder: Path) -> Path:
    """Write the report of a run folder and return its path.

    Raises:
        NotFoundError: it is no run folder.
    """
    path = folder / REPORT_HTML
    replace_file(path, render_page(read_run(folder)).encode())
    return path
