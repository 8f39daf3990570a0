"""``tidegate model``: the folder of a pretrained model, built on first use."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tidegate.models.model_folder import CACHE_DIR, folder_digest, pretrained_folder


def model(
    path: Annotated[str, typer.Argument(help="Value of policy.path: a folder, or smollm2.")],
    cache: Annotated[
        Path, typer.Option("--cache", help="Folder for models that are built from packages.")
    ] = CACHE_DIR,
) -> None:
    """Print the folder that a run file's policy.path names, and the digest of the model in it.

    The first use of SmolLM2 builds it from its package in half a minute. An adapter fits only the model whose digest
    it was trained on.
    """
    folder = pretrained_folder(path, cache_dir=cache)
    digest = folder_digest(folder)
    Console().print(f"{folder} {digest}", highlight=False, soft_wrap=True)
