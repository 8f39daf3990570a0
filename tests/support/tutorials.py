"""A tutorial as a reader works through it: writes the files that a page shows, and types its commands, in order.

A fenced block of `sh` is typed into a terminal, which keeps the folder and the variables of the block before. One that
begins with ``# in another terminal``, in the same folder, is typed while the block before it still runs. A block of
another language whose first line is a comment with a file's name is written to that file. Blocks of `text`, and those
without a language, are output or are not typed here.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from tests.support.documented_commands import FENCE

BESIDE = "# in another terminal"
SHELL = "sh"
FILE = re.compile(r"# ([\w./-]+\.\w+)\n")
BLOCK_DEADLINE_S = 600.0
# `tidegate` and `python` are those of these tests.
PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))


@dataclass(frozen=True)
class Step:
    """A file that is written, or commands that are typed: the other is empty.

    ``beside``: while the step before it still runs.
    """

    path: str = ""
    text: str = ""
    commands: str = ""
    beside: bool = False


class StepError(Exception):
    """A step that failed or took too long, with what it printed."""


def steps_of(page: str, replaced: Mapping[str, str]) -> Iterator[Step]:
    """The steps of a page. ``replaced``: lines that the test types in another form.

    Raises:
        ValueError: a line to replace is not in the page.
    """
    for line, other in replaced.items():
        if f"\n{line}\n" not in page:
            raise ValueError(f"the page has no line {line!r}")
        page = page.replace(f"\n{line}\n", f"\n{other}\n")
    for language, body in FENCE.findall(page):
        named = FILE.match(body)
        if language == SHELL:
            yield Step(commands=body, beside=body.startswith(BESIDE))
        elif named and language:
            yield Step(path=named[1], text=body)


def walk(page: Path, folder: Path, *, replaced: Mapping[str, str] | None = None) -> list[str]:
    """Do every step of a page in the folder; returns what each block of commands printed, in the order of the page.

    Raises:
        StepError: a command failed, or a block took longer than ``BLOCK_DEADLINE_S``.
    """
    steps = list(steps_of(page.read_text(encoding="utf-8"), replaced or {}))
    printed: list[str] = []
    here, variables = folder, {**os.environ, "PATH": PATH}
    for number, step in enumerate(steps):
        if step.path:
            path = folder / step.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text, encoding="utf-8")
        elif not step.beside:
            with _Terminal(step.commands, here, variables) as terminal:
                for beside in takewhile(lambda each: each.beside, steps[number + 1 :]):
                    with _Terminal(beside.commands, here, variables) as other:
                        printed.append(other.end())
                printed.append(terminal.end())
                here, variables = terminal.left()
    return printed


class _Terminal:
    """A shell that ends at the first command that fails; what it left behind is killed with it."""

    def __init__(self, commands: str, folder: Path, variables: Mapping[str, str]) -> None:
        self._commands = commands
        handle, name = tempfile.mkstemp(prefix="tidegate-terminal-")
        os.close(handle)
        self._left = Path(name)
        self._shell = subprocess.Popen(
            [
                "bash",
                "-e",
                "-o",
                "pipefail",
                "-c",
                f"trap '{{ pwd; env --null; }} > {name}' EXIT\n{commands}",
            ],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> "_Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):  # nothing of it is left
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()
        self._left.unlink()

    def left(self) -> tuple[Path, dict[str, str]]:
        """Where it was at its end, and its exported variables."""
        folder, _, variables = self._left.read_text().partition("\n")
        return Path(folder), dict(each.split("=", 1) for each in variables.split("\0") if each)

    def end(self) -> str:
        """What was printed, once it is over."""
        try:
            said, _ = self._shell.communicate(timeout=BLOCK_DEADLINE_S)
        except subprocess.TimeoutExpired as error:
            raise StepError(f"after {BLOCK_DEADLINE_S:g} s this still ran:\n{self._commands}") from error
        if self._shell.returncode != 0:
            raise StepError(f"exit {self._shell.returncode} of:\n{self._commands}\n{said}")
        return said
