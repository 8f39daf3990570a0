"""``tidegate policy``."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.console import open_console
from tidegate.cli.policy.exporting import check_format, write_policy
from tidegate.cli.policy.sending import write_file_to, write_folder_to
from tidegate.cli.policy.transformers_folder import write_folder
from tidegate.cli.run_argument import RunArgument, RunOption, named_run
from tidegate.core.errors import ConfigError
from tidegate.launch.named_version import NEWEST
from tidegate.launch.stored_policy import stored_version
from tidegate.runtime.object_storage.place import require_library
from tidegate.runtime.object_storage.urls import is_url, scheme_of

VersionOption = Annotated[
    str,
    typer.Option(
        help="Version, such as 0-3fa2@40, newest, or best: a checkpoint or weight distribution must hold it."
    ),
]


def policy(
    run: RunArgument = None,
    folder: RunOption = None,
    version: VersionOption = NEWEST,
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            help="File to write: name.onnx or name.safetensors, also as s3://bucket/name.onnx (gs://, az://, file://).",
        ),
    ] = "policy.safetensors",
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            help="Instead of a file, of a language model: a new folder for transformers, also as s3://bucket/prefix.",
        ),
    ] = None,
    adapters: Annotated[
        bool,
        typer.Option(
            "--adapters", help="With --to: the trained adapters alone, for PEFT, instead of merged."
        ),
    ] = False,
) -> None:
    """Write a version of a run's policy to a file or folder that is used without Tidegate.

    Of segments, .onnx maps observations to greedy actions, and .safetensors holds the tensors; of language models
    .safetensors holds all weights, or the adapters that were trained, and there is no .onnx. Metadata in the file name
    run, version, network, preprocessing and spaces. --to writes a folder with weights, tokenizer, generation config and
    a model card.
    """
    if adapters and to is None:
        raise ConfigError("--adapters needs a folder", fix="name it with --to")
    if to is None:
        check_format(Path(output))
    for url, setting in ((to or "", "--to"), (output, "--output")):
        if is_url(url):
            scheme_of(url, setting=setting)
            require_library()
    stored = stored_version(named_run(run, folder), version)
    if to is not None:
        write_folder_to(to, partial(write_folder, stored, adapters=adapters))
        open_console().print(f"{to}: version {stored.version} of {stored.run}", soft_wrap=True)
        return
    num_bytes = write_file_to(output, partial(write_policy, stored))
    console = open_console()
    console.print(
        f"{output}: version {stored.version} of {stored.run}, {num_bytes:,} bytes",
        soft_wrap=True,
    )
