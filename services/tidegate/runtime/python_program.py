"""How a module of this package is started as a program."""

import sys


def python_program(module: str, *arguments: str) -> list[str]:
    """The command. The program searches the working directory for no module of its own accord.

    ``-m`` alone puts that folder before the standard library, and a user's ``queue.py`` would be imported in place of
    Python's. Own code is found there by ``own_code.loading`` and ``vector_envs.finding``.
    """
    return [sys.executable, "-P", "-m", module, *arguments]
