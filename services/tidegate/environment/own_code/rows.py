"""The prompts and demonstrations of a user's task, written by a process of its own: ``rows_child`` runs the code.

The same process tells of a verifier whether it can be loaded.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from tidegate.core.errors import ConfigError
from tidegate.environment.own_code.process import PLATFORM_VARIABLES
from tidegate.runtime.own_code.references import OwnReference
from tidegate.runtime.parent_death import dies_with_this_process

CHILD = "tidegate.environment.own_code.rows_child"
ANSWER_BYTES_MAX = 1 << 20


class RowsQuestion(msgspec.Struct, frozen=True):
    """What to write: the rows of ``reference`` into ``folder``.

    ``has_dataset``: the prompts are those of ``workload.dataset``, already in the folder; only demonstrations are
    written. ``bins``: only problems of these; none means all. ``loads_only``: write nothing.
    """

    reference: OwnReference
    folder: str
    seed: int
    num_demonstrations: int
    bins: tuple[str, ...] = ()
    has_dataset: bool = False
    loads_only: bool = False


class RowsWritten(msgspec.Struct, frozen=True, tag="written"):
    """It is done. ``is_conversation``: the task has episodes of several turns."""

    is_conversation: bool


class RowsRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The parts of the error's sentence."""

    what: str
    why: str
    fix: str


RowsAnswer = RowsWritten | RowsRefused


def write_rows(question: RowsQuestion, *, environ: Mapping[str, str], deadline_s: float) -> RowsWritten:
    """Run the child and wait for it; it and all that it started are gone afterwards.

    Raises:
        ConfigError: the code cannot be loaded, fails, or has no usable prompts; or it took longer than ``deadline_s``.
    """
    written = question.reference.written
    process = subprocess.Popen(
        [sys.executable, "-m", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={name: value for name, value in environ.items() if not name.startswith(PLATFORM_VARIABLES)},
        preexec_fn=dies_with_this_process(),
    )
    began_s = time.monotonic()
    try:
        answer, printed = process.communicate(msgspec.json.encode(question), timeout=deadline_s)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"The problems of {written} were not ready within {time.monotonic() - began_s:.0f} s",
            fix="let problems() return a list at once, or write the prompts into a file for workload.dataset",
        ) from error
    finally:
        _kill(process)
    try:
        found = msgspec.json.decode(answer[:ANSWER_BYTES_MAX], type=RowsAnswer)
    except msgspec.MsgspecError as error:
        lines = printed.decode(errors="replace").strip().splitlines()
        raise ConfigError(
            f"{written} ended the process that asked it for its problems, with exit code {process.returncode}",
            why=lines[-1][:400] if lines else "",
            fix="correct its code",
        ) from error
    if isinstance(found, RowsRefused):
        raise ConfigError(found.what, why=found.why, fix=found.fix)
    return found


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
