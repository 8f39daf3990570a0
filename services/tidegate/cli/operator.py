"""``tidegate operator``: create, change and remove the releases of TrainingRuns, until it is stopped."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from tidegate.core.errors import TidegateError
from tidegate.launch.cluster import LISTEN
from tidegate.launch.log_lines import log_json_lines
from tidegate.operator.config import read_config
from tidegate.operator.main import run_operator
from tidegate.runtime.exit_codes import DRAINED
from tidegate.runtime.termination_message import write_termination_message


def operator(
    config: Annotated[Path, typer.Option(help="YAML file with what it watches, allows and adds.")],
    listen: Annotated[str, typer.Option(help="host:port of its health (gRPC).")] = LISTEN,
) -> None:
    """Make the release of each TrainingRun that has a run file. Run by the chart helm/tidegate-operator."""
    log_json_lines(service="operator", instance="operator", run="")
    try:
        exit_code = asyncio.run(run_operator(read_config(config), listen=listen))
    except TidegateError as error:
        write_termination_message(str(error))
        raise
    if exit_code != DRAINED:
        raise typer.Exit(exit_code)
