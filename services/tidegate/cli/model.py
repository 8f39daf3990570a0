"""``tidegate model``: the folder of a pretrained model, made if need be."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tidegate.models.model_folder import CACHE_DIR, folder_digest, pretrained_folder


def model(
    path: Annotated[str, typer.Argument(help="What policy.path says: a folder, or smollm2.")],
    cache: Annotated[
        Path, typer.Option("--cache", help="Where models made from packages are kept.")
    ] = CACHE_DIR,
) -> None:
    """Print the folder that a run file's policy.path means, and the digest of the model in it.

    SmolLM2 is made out of its package the first time, for half a minute. Adapters belong to the model with the digest
    that they were trained on.
    """
    folder = pretrained_folder(path, cache_dir=cache)
    digest = folder_digest(folder)
    Console().print(f"{folder} {digest}", highlight=False, soft_wrap=True)
