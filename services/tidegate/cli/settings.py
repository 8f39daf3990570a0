"""``tidegate set``: change settings of a running platform that its services take over without a restart."""

from typing import Annotated, Any

import typer

from tidegate.cli.console import open_console
from tidegate.cli.run_argument import RunFolderOption
from tidegate.launch.run_file_change import change_run_file
from tidegate.launch.run_folder import find_running


def change(
    settings: Annotated[
        list[str], typer.Argument(help="path.to.key=value, as in a run file.", metavar="SETTING...")
    ],
    folder: RunFolderOption = None,
) -> None:
    """Change the staleness budget, objectives or scaling of a running platform; no process restarts.

    A lower budget holds at once: what is beyond it is dropped as stale. Settings that need a restart are refused.
    """
    changed = change_run_file(find_running(folder), settings)
    console = open_console()
    for path, (was, now) in changed.items():
        console.print(f"{path}: {_text(was)} -> {_text(now)}", soft_wrap=True)
    console.print(
        "in force within seconds" if changed else "nothing changed: the run has these settings already",
    )


def _text(value: Any) -> str:
    return "not set" if value is None else str(value)
