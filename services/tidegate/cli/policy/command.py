"""``tidegate policy``."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.console import open_console
from tidegate.cli.policy.exporting import check_format, write_policy
from tidegate.cli.policy.hub import HubRepository, push_policy
from tidegate.cli.policy.sending import write_folder_to
from tidegate.cli.policy.transformers_folder import write_folder
from tidegate.cli.run_argument import RunArgument, RunOption, named_run
from tidegate.cli.sent_file import check_target, write_file_to
from tidegate.core.errors import ConfigError
from tidegate.launch.named_version import NEWEST
from tidegate.launch.stored_policy import stored_version

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
            "--adapters",
            help="With --to or --push-to-hub: the trained adapters alone, for PEFT, instead of merged.",
        ),
    ] = False,
    push_to_hub: Annotated[
        str | None,
        typer.Option(
            "--push-to-hub",
            help="Instead of a file here: a repository of a hub, which gets it in one commit with a model card.",
            metavar="OWNER/NAME",
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="With --push-to-hub: make a new repository private.")
    ] = False,
) -> None:
    """Write a version of a run's policy to a file or folder that is used without Tidegate.

    Of segments, .onnx maps observations to greedy actions, and .safetensors holds the tensors; of language models
    .safetensors holds all weights, or the adapters that were trained, and there is no .onnx. Metadata in the file name
    run, version, network, preprocessing and spaces. --to writes a folder with weights, tokenizer, generation config and
    a model card, --push-to-hub the same (of segments the file that -o names) in a repository of the Hugging Face Hub or
    of the server that HF_ENDPOINT names, with the token of HF_TOKEN.
    """
    if adapters and to is None and push_to_hub is None:
        raise ConfigError("--adapters needs a folder", fix="name it with --to")
    if to is not None and push_to_hub is not None:
        raise ConfigError("--to and --push-to-hub exclude each other", fix="run the command once for each")
    if to is None:
        check_format(Path(output))
    check_target(to or "", setting="--to")
    check_target(output, setting="--output")
    stored = stored_version(named_run(run, folder), version, in_pod=True)
    if push_to_hub is not None:
        repository = HubRepository(push_to_hub, private=private)
        address = push_policy(repository, stored, file_name=Path(output).name, adapters=adapters)
        open_console().print(f"{address}: version {stored.version} of {stored.run}", soft_wrap=True)
        return
    if to is not None:
        write_folder_to(to, partial(write_folder, stored, adapters=adapters))
        open_console().print(f"{to}: version {stored.version} of {stored.run}", soft_wrap=True)
        return
    num_bytes = write_file_to(output, partial(write_policy, stored), setting="--output")
    console = open_console()
    console.print(
        f"{output}: version {stored.version} of {stored.run}, {num_bytes:,} bytes",
        soft_wrap=True,
    )
