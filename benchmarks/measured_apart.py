"""A part of a bench that is measured in a process of its own, and answers in JSON."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from benchmarks.training_run import THREADS
from tidegate.core.errors import UnavailableError

Answer = TypeVar("Answer")


def measured_apart(
    module: str, arguments: Sequence[str], answer: type[Answer], *, what: str, timeout_s: float
) -> Answer:
    """What ``python -m module arguments`` writes to its standard output, as JSON of an ``answer``.

    Raises:
        UnavailableError: ``what`` could not be measured: the program failed, or took longer than ``timeout_s``.
    """
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, check=True, timeout=timeout_s, env={**os.environ, **THREADS}
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(
            f"{what} could not be measured",
            why=str(error.stderr or error)[-500:],
            fix=f"run {' '.join(command)}",
        ) from error
    return msgspec.json.decode(done.stdout, type=answer)
