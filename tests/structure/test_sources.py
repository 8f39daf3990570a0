"""The sources stay small enough to read, and each class name means one thing."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.support.statements import statements

ROOT = Path(__file__).parents[2]
FOLDERS = ("services", "tests", "tools", "benchmarks")
# Past these a file or a function holds more than one thing; modules aim at 200 lines, functions at a screen.
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 80
# Tables and command signatures, one entry or option a line.
LONG_FUNCTIONS = {
    "services/tidegate/cli/plan/command.py:plan",
    "tools/monitoring/alerts.py:other_alerts",
}


@cache
def sources() -> dict[str, str]:
    """Every Python source that people write, by its path in the repository."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "v1" not in path.parts  # generated
    }


class Definition(NamedTuple):
    """A class or a function of a module, without its tree: the trees of all sources take 270 MB."""

    name: str
    is_class: bool
    num_lines: int


@cache
def definitions() -> dict[str, list[Definition]]:
    """The classes and functions of each module, nested ones too."""
    return {path: list(defined_in(ast.parse(text))) for path, text in sources().items()}


def defined_in(tree: ast.Module) -> Iterator[Definition]:
    for each in statements(tree):
        if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            num_lines = (each.end_lineno or each.lineno) - each.lineno + 1
            yield Definition(each.name, isinstance(each, ast.ClassDef), num_lines)


def test_modules_are_short_enough_to_read() -> None:
    num_lines = {path: len(text.splitlines()) for path, text in sources().items()}
    assert {path: num for path, num in num_lines.items() if num > MODULE_LINES_MAX} == {}


def test_functions_are_short_enough_to_read() -> None:
    too_long = {
        f"{path}:{each.name}"
        for path, defined in definitions().items()
        for each in defined
        if not each.is_class and each.num_lines > FUNCTION_LINES_MAX
    }
    assert too_long - LONG_FUNCTIONS == set()


def test_class_name_is_defined_in_one_module_of_the_services() -> None:
    modules: dict[str, set[str]] = defaultdict(set)
    for path, defined in definitions().items():
        for each in defined:
            if path.startswith("services/") and each.is_class:
                modules[each.name].add(path)
    twice = {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1}
    assert twice == {}
