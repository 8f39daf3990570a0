"""``tidegate model``: the folder of a pretrained model, built on first use or copied once."""

import os
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.console import open_console
from tidegate.core.errors import ConfigError
from tidegate.launch.model_volume import fill
from tidegate.models.model_folder import CACHE_DIR, folder_digest, pretrained_folder
from tidegate.models.smollm2 import SMOLLM2

# A bearer token for the server of an URL; a variable, because arguments can be read by every user of a machine.
TOKEN_VARIABLE = "TIDEGATE_MODEL_TOKEN"
DEADLINE_S = 7200.0


def model(
    path: Annotated[
        str, typer.Argument(help="Value of policy.path: a folder, or smollm2; with --into also an URL.")
    ],
    cache: Annotated[
        Path, typer.Option("--cache", help="Folder for models that are built from packages.")
    ] = CACHE_DIR,
    into: Annotated[
        Path | None,
        typer.Option("--into", help="Fill this folder with the model, unless it is there already."),
    ] = None,
    deadline: Annotated[
        float, typer.Option(help="With --into: seconds to wait for another process that fills it.", min=1.0)
    ] = DEADLINE_S,
) -> None:
    """Print the folder that a run file's policy.path names, and the digest of the model in it.

    The first use of SmolLM2 builds it from its package in half a minute. An adapter fits only the model whose digest
    it was trained on.

    `--into FOLDER` copies the model from another folder, or from one of a web server such as
    https://host/org/model/resolve/main (with the token in TIDEGATE_MODEL_TOKEN), and prints the folder. Processes that
    fill the same folder wait for the first.
    """
    if into is not None:
        if path == SMOLLM2:
            raise ConfigError("SmolLM2 is built from its package", fix="leave out --into, and give --cache")
        is_new = fill(path, into, token=os.environ.get(TOKEN_VARIABLE, ""), deadline_s=deadline)
        open_console().print(f"{into} {'filled' if is_new else 'is there'}", soft_wrap=True)
        return
    folder = pretrained_folder(path, cache_dir=cache)
    digest = folder_digest(folder)
    open_console().print(f"{folder} {digest}", soft_wrap=True)
