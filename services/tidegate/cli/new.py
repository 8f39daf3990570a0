"""``tidegate new``: a folder with code of one's own, a run file, a test and a README, which runs as it is."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from tidegate.launch.templates import kinds, write_template


def new(
    kind: Annotated[str, typer.Argument(help=f"What to begin: {', '.join(kinds())}.", metavar="KIND")],
    name: Annotated[str, typer.Argument(help="Name of the run, and of the folder.", metavar="NAME")],
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder to write; by default NAME.", metavar="DIR")
    ] = None,
) -> None:
    """Write a folder with code of your own, a run file, a test and a README, which trains as it is."""
    folder = directory or Path(name)
    for path in write_template(kind, name, folder):
        sys.stdout.write(f"{path}\n")
    sys.stdout.write(f"\nNext: cd {folder} && tidegate up run.yaml\n")
