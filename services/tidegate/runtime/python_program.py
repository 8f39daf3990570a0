"""How a module of this package is started as a program, and what it said at its end."""

import subprocess
import sys


def python_program(module: str, *arguments: str) -> list[str]:
    """The command. The program searches the working directory for no module of its own accord.

    ``-m`` alone puts that folder before the standard library, and a user's ``queue.py`` would be imported in place of
    Python's. Own code is found there by ``own_code.loading`` and ``vector_envs.finding``.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def last_words(ended: subprocess.CompletedProcess[str]) -> str:
    """Why a program failed: the last line of its standard error, or that it was killed before it wrote one."""
    return (ended.stderr.strip().splitlines() or ["its process was killed"])[-1].removeprefix("tidegate: ")
