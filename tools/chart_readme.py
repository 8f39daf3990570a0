"""Write the table of values in ``helm/tidegate/README.md``, and the run files as values; or check them.

Usage: .venv/bin/python tools/chart_readme.py [--check]. A row is a key of values.yaml with its default and the comment
above it that begins with ``# --``.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import yaml

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "helm" / "tidegate"
BEGIN, END = "<!-- values: made by `make chart` -->\n", "<!-- end of values -->\n"
MARK = "# -- "
# Described by the types of the run file, in values.schema.json.
OPAQUE = frozenset({"run"})


def rows(text: str) -> Iterator[tuple[str, str, str]]:
    """Key, default and meaning of every value."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(node, yaml.MappingNode)
    yield from _rows(node, text.splitlines(), "")


def _rows(node: yaml.MappingNode, lines: list[str], prefix: str) -> Iterator[tuple[str, str, str]]:
    for key, value in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
        name = f"{prefix}{key.value}"
        meaning = _comment(lines, key.start_mark.line)
        nested = isinstance(value, yaml.MappingNode) and bool(value.value) and not value.flow_style
        if nested and name not in OPAQUE:
            if meaning:
                yield name, "", meaning
            yield from _rows(cast("yaml.MappingNode", value), lines, f"{name}.")
        else:
            yield name, "" if name in OPAQUE else f"`{_default(value)}`", meaning


def _comment(lines: list[str], line: int) -> str:
    words: list[str] = []
    for index in range(line - 1, -1, -1):
        text = lines[index].strip()
        if not text.startswith("#"):
            break
        words.insert(0, text.removeprefix("# "))
        if text.startswith(MARK):
            return " ".join(words).removeprefix("-- ")
    return ""


def _default(node: yaml.Node) -> str:
    value: Any = yaml.safe_load(cast("Any", yaml).serialize(node))
    return json.dumps(value, ensure_ascii=False)


def readme(chart: Path) -> str:
    """The README of a chart with the current table."""
    head, _, rest = (chart / "README.md").read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    table = ["| key | default | meaning |", "| --- | --- | --- |"]
    for key, default, meaning in rows((chart / "values.yaml").read_text(encoding="utf-8")):
        table.append(f"| `{key}` | {default} | {meaning.replace('|', chr(92) + '|')} |")
    return f"{head}{BEGIN}\n" + "\n".join(table) + f"\n\n{END}{tail}"


def build() -> dict[Path, str]:
    """Every file and its text."""
    files = {CHART / "README.md": readme(CHART)}
    for path in sorted((ROOT / "runs").glob("*.yaml")):
        indented = "".join(
            f"  {line}\n" if line else "\n" for line in path.read_text(encoding="utf-8").splitlines()
        )
        files[CHART / "runs" / path.name] = (
            f"# runs/{path.name} as values; made by `make chart`.\nrun:\n{indented}"
        )
    return files


def write_or_check(files: Mapping[Path, str], *, description: str) -> int:
    """Write what differs, or with ``--check`` on the command line name it; returns the exit code."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is outdated")
    check: bool = parser.parse_args().check
    behind = [
        (path, text)
        for path, text in files.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in behind:
        if check:
            sys.stderr.write(f"{path.relative_to(ROOT)} is outdated: run `make chart` and commit it.\n")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return 1 if check and behind else 0


def main() -> int:
    """Write the files, or with ``--check`` report which are outdated."""
    return write_or_check(build(), description="Write the chart's texts that are generated from its values.")


if __name__ == "__main__":
    sys.exit(main())
