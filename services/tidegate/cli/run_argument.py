"""Arguments that commands share: the run that a command reads, as an argument or by ``--dir``, and ``--set``."""

from pathlib import Path
from typing import Annotated

import typer

from tidegate.core.errors import ConfigError

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a key of the run file: path.to.key=value; repeatable."),
]
RUN_HELP = "Run folder (default: the newest below .tidegate/runs)."
RunArgument = Annotated[Path | None, typer.Argument(help=RUN_HELP, metavar="RUN")]
RunOption = Annotated[Path | None, typer.Option("--dir", help="The same as RUN.")]
# Of commands whose argument is something else.
RunFolderOption = Annotated[Path | None, typer.Option("--dir", help=RUN_HELP)]


def named_run(run: Path | None, folder: Path | None) -> Path | None:
    """The folder that the argument or ``--dir`` names; None if neither does.

    Raises:
        ConfigError: they name two folders.
    """
    if run is not None and folder is not None and run != folder:
        raise ConfigError(
            f"The command names two runs, {run} and --dir {folder}", fix="name the run folder once"
        )
    return run if run is not None else folder
