"""Runs the benchmarks from a checkout: ``python -m benchmarks NAMES``, or ``make bench``."""

import sys

import typer

from benchmarks.command import bench
from tidegate.cli.app import print_error
from tidegate.core.errors import TidegateError

if __name__ == "__main__":
    try:
        typer.run(bench)
    except TidegateError as error:
        sys.exit(print_error(error))
