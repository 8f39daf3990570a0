"""The sources stay small enough to read, and each class name means one thing."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

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


@cache
def definitions() -> dict[str, list[ast.AST]]:
    """The classes and functions of each module."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        path: [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
        for path, text in sources().items()
    }


def functions() -> Iterator[tuple[str, int]]:
    """Each function's place, and its number of lines."""
    for path, nodes in definitions().items():
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def test_modules_are_short_enough_to_read() -> None:
    num_lines = {path: len(text.splitlines()) for path, text in sources().items()}
    assert {path: num for path, num in num_lines.items() if num > MODULE_LINES_MAX} == {}


def test_functions_are_short_enough_to_read() -> None:
    too_long = {place for place, num in functions() if num > FUNCTION_LINES_MAX}
    assert too_long - LONG_FUNCTIONS == set()


def test_class_name_is_defined_in_one_module_of_the_services() -> None:
    modules: dict[str, set[str]] = defaultdict(set)
    for path, nodes in definitions().items():
        for node in nodes:
            if path.startswith("services/") and isinstance(node, ast.ClassDef):
                modules[node.name].add(path)
    twice = {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1}
    assert twice == {}
