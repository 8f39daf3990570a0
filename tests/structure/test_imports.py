"""No circle of imports, of any size: function-level and ``TYPE_CHECKING`` imports count like all others."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.support.statements import statements

SERVICES = Path(__file__).parents[2] / "services"
PACKAGE = "tidegate"


def modules() -> dict[str, Path]:
    """Every module by its dotted name; a package is its ``__init__``."""
    found: dict[str, Path] = {}
    for path in (SERVICES / PACKAGE).rglob("*.py"):
        parts = path.relative_to(SERVICES).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST, names: frozenset[str]) -> Iterator[str]:
    """Modules among ``names`` that a source imports, wherever in it."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                if submodule in names:
                    yield submodule
                elif node.module in names:
                    yield node.module


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of a graph, its first module repeated at its end; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_through_others() -> None:
    paths = modules()
    names = frozenset(paths)
    graph = {
        name: set(imported(ast.parse(path.read_text(encoding="utf-8")), names))
        for name, path in paths.items()
    }
    assert sum(map(len, graph.values())) > len(graph), (
        "the graph has no edges: is the package somewhere else?"
    )
    assert circle(graph) == []


def test_a_circle_behind_a_function_and_a_type_check_is_found() -> None:
    names = frozenset({"a", "b", "b.c"})
    lazy = ast.parse("def f():\n    from b import c")
    typed = ast.parse("if TYPE_CHECKING:\n    from a import f")
    graph = {"a": set(imported(lazy, names)), "b.c": set(imported(typed, names)), "b": set[str]()}
    assert sorted(set(circle(graph))) == ["a", "b.c"]
