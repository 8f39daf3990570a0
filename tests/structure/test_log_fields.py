"""A line of a service's log has its origin, which a field of the same name would be lost to."""

import ast
from pathlib import Path

SERVICES = Path(__file__).parents[2] / "services" / "tidegate"
# launch/log_lines.py writes them into every line.
ORIGIN = {"service", "instance", "run", "trace_id", "level", "timestamp"}
LEVELS = {"debug", "info", "warning", "error", "exception"}


def overwritten_fields(source: str) -> list[str]:
    """Fields of log calls that the origin replaces, as ``line field``."""
    if "log" not in source:
        return []  # most modules: parsing all of them takes seconds
    return [
        f"{node.lineno} {field.arg}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in LEVELS
        and "log" in ast.unparse(node.func.value)
        for field in node.keywords
        if field.arg in ORIGIN
    ]


def test_no_field_of_a_log_line_is_lost_to_its_origin() -> None:
    found = {
        str(path.relative_to(SERVICES)): fields
        for path in SERVICES.rglob("*.py")
        if (fields := overwritten_fields(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_a_field_named_as_the_origin_is_found() -> None:
    assert overwritten_fields("self._log.info('release', run='a/b', state='x')") == ["1 run"]
