"""The commands of ``registry.COMMANDS`` as one typer application, and errors as one clear line."""

import errno
import os
import sys

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from tidegate.cli.plain_values import keep_plain_values
from tidegate.cli.registry import COMMANDS
from tidegate.core.errors import (
    ConfigError,
    CorruptionError,
    FolderInUseError,
    NotFoundError,
    RecordError,
    StaleFolderError,
    TidegateError,
)
from tidegate.runtime import exit_codes
from tidegate.runtime.loading import load

EXIT_FAILED, EXIT_BAD_INPUT = exit_codes.FAILED, exit_codes.BAD_INPUT
EXIT_INTERRUPTED = 130
# A file of the run is damaged: no statement about its accounting, which is what 1 of `audit` means.
EXIT_DAMAGED = 3
EXIT_IN_USE = 4
EXIT_DISK_FULL = 5
# The first class that fits decides. Errors that the user can correct by other input have the code of a usage error.
EXIT_CODES: dict[type[TidegateError], int] = {
    FolderInUseError: EXIT_IN_USE,
    CorruptionError: EXIT_DAMAGED,
    ConfigError: EXIT_BAD_INPUT,
    NotFoundError: EXIT_BAD_INPUT,
    RecordError: EXIT_BAD_INPUT,
    StaleFolderError: EXIT_BAD_INPUT,
}
# What is said of a path that a user named, or that a run folder leads to.
PATH_REFUSALS = {
    errno.EACCES: "run the command as the user to whom it belongs, or name another path",
    errno.EPERM: "run the command as the user to whom it belongs, or name another path",
    errno.EROFS: "its disk is read-only: copy the folder to another one, or name a path there",
    errno.ENOENT: "name a path that is there",
    errno.ENOTDIR: "name a path that is there",
    errno.EISDIR: "name a file",
    errno.ENAMETOOLONG: "name a shorter path",
}

# By the package that an import misses: the extra that has it.
EXTRAS = {
    "torch": "train",
    "transformers": "llm",
    "gymnasium": "env",
    "matplotlib": "train",
    "onnx": "images",
}


def _not_loaded() -> None:
    """Placeholder of the commands that this process does not run."""


def build(arguments: list[str]) -> TyperGroup:
    """The application. Only the command that ``arguments`` name is imported; the others are lines of the help."""
    chosen = next((argument for argument in arguments if not argument.startswith("-")), "")
    app = typer.Typer(
        name="tidegate",
        help="Asynchronous reinforcement learning as services, with staleness as a declared SLO.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root() -> None:
        """Asynchronous reinforcement learning as services, with staleness as a declared SLO."""

    for name, entry in COMMANDS.items():
        function = load(entry.target) if name == chosen else _not_loaded
        app.command(name, short_help=entry.summary)(function)
    group = get_command(app)
    assert isinstance(group, TyperGroup), "it has a callback"
    command = group.commands.get(chosen)
    if isinstance(command, TyperCommand):
        keep_plain_values(group, command)
    return group


def completed_words() -> list[str]:
    """The words, without the program's name, of a line that a shell asks to complete; empty in any other call.

    Their command is the one whose options are suggested, so it has to be loaded.
    """
    if "_TIDEGATE_COMPLETE" not in os.environ:
        return []
    # Bash has one name for the line, the other shells another.
    return (os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or "").split()[1:]


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code.

    A ``TidegateError``, what the system refuses at a path, and an extra that is not installed are printed as one line.
    """
    _print_any_text()
    try:
        build(completed_words() or arguments)(arguments, prog_name="tidegate", standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    except TidegateError as error:
        return print_error(error)
    except ModuleNotFoundError as error:
        if (extra := EXTRAS.get((error.name or "").partition(".")[0])) is None:
            raise
        fix = f"install tidegate[{extra}], or in a cluster run it in the learner's pod, whose image has it"
        return print_error(ConfigError(f"This command needs {error.name}, which is not installed", fix=fix))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            sys.stderr.write(
                f"tidegate: The disk is full: {error}. Free space, then run the command again.\n"
            )
            return EXIT_DISK_FULL
        if error.errno not in PATH_REFUSALS or not error.filename:
            raise
        what = f"{error.filename} cannot be used"
        return print_error(ConfigError(what, why=error.strerror or "", fix=PATH_REFUSALS[error.errno]))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def _print_any_text() -> None:
    """Let a character that the terminal's encoding does not have, or half of one in a path, end no command."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:  # a notebook's output has none
        reconfigure(errors="replace")


def print_error(error: TidegateError) -> int:
    """Print what, why and fix on standard error, a sentence each; returns the exit code."""
    # The first part begins as it is meant to: what it begins with may be the name of a file or a setting.
    parts = [
        error.what.strip(),
        *(_capitalised(part.strip()) for part in (error.why, error.fix) if part.strip()),
    ]
    sys.stderr.write(f"tidegate: {' '.join(map(_with_full_stop, parts))}\n")
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), EXIT_FAILED)


def _capitalised(text: str) -> str:
    """With a capital, unless it begins with a name."""
    first = text.split(maxsplit=1)[0]
    return text[0].upper() + text[1:] if first.isalpha() else text


def _with_full_stop(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."
