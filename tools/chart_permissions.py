"""Write the broker's table of permissions for the chart, from the table that a laptop's broker is configured from.

Usage: .venv/bin/python tools/chart_permissions.py [--check]
"""

import argparse
import json
import sys
from pathlib import Path

import msgspec

from tidegate.wire.permissions import permissions

PATH = Path(__file__).resolve().parent.parent / "helm" / "tidegate" / "files" / "broker-permissions.json"


def build() -> str:
    """The file: for each user what it may publish and subscribe to, with ``{run}`` for the run's id."""
    users = {name: msgspec.to_builtins(allowed) for name, allowed in sorted(permissions().items())}
    return json.dumps(users, indent=1) + "\n"


def main() -> int:
    """Write the file or check it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if not parser.parse_args().check:
        PATH.write_text(build(), encoding="utf-8")
        return 0
    if PATH.read_text(encoding="utf-8") == build():
        return 0
    sys.stderr.write(f"{PATH.name} differs from tidegate.wire.permissions: run `make chart`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
