"""``--json``: one object on one line of standard output."""

import sys

import msgspec


def write_json(value: object) -> None:
    """Print a value as JSON."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
