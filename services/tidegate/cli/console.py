"""The console for output other than JSON: text without markup, and wide lines where the output is no terminal."""

import os

from rich.console import Console

# Of a file or a pipe, which have none: at rich's 80 columns a table would lose names and numbers.
FILE_WIDTH = 160


def open_console(*, stderr: bool = False) -> Console:
    """A console that takes no text for markup or emoji: names, paths and reasons of users hold brackets and colons.

    Markup is for the few texts that are written here: ``Text.from_markup``.
    """
    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FILE_WIDTH
    return console
