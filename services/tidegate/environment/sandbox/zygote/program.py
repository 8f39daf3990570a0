"""The last step of a run: the program itself, as ``__main__``, in the interpreter that was forked for it."""

import atexit
import linecache
import os
import sys
import threading
import traceback
from types import TracebackType
from typing import NoReturn

FILE_NAME = "main.py"
# What programs use most, imported once before the fork instead of in every run.
IMPORTED_BEFORE = (
    "ast", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools",
    "heapq", "io", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "typing",
)  # fmt: skip


def _print_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A traceback that begins in the program, as if nothing had called it."""
    while trace is not None and trace.tb_frame.f_code.co_filename != FILE_NAME:
        trace = trace.tb_next
    traceback.print_exception(kind, error, trace)


def _status(ended: SystemExit) -> int:
    """The exit status that an interpreter makes of a ``SystemExit``."""
    if ended.code is None or isinstance(ended.code, int):
        return (ended.code or 0) & 0xFF
    print(ended.code, file=sys.stderr)  # noqa: T201  what the interpreter does with a message
    return 1


def run(code: bytes) -> NoReturn:
    """Run ``code`` and end this process as an interpreter ends, but without freeing its modules.

    Freeing took 7 of a small run's 11 ms: it touches, and so copies, every object of the zygote.
    """
    sys.excepthook = _print_error
    sys.argv = [FILE_NAME]
    names = sys.modules["__main__"].__dict__
    names.clear()
    names.update(__name__="__main__", __builtins__=__builtins__, __file__=FILE_NAME)
    status = 0
    try:
        text = code.decode()
        linecache.cache[FILE_NAME] = (len(text), None, text.splitlines(keepends=True), FILE_NAME)
        # Model-written code: this process is isolated by the sandbox and has no other purpose.
        exec(compile(text, FILE_NAME, "exec"), names)  # noqa: S102
    except SystemExit as ended:
        status = _status(ended)
    except BaseException as error:  # the program's error: printed to its stderr, as an interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    _wind_up()
    os._exit(status)


def _wind_up() -> None:
    """Wait for the program's threads, call what it left to be called at the end, and write what it printed."""
    # What the interpreter itself calls at its end; there is no public name for either.
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed or replaced by the program
            continue
