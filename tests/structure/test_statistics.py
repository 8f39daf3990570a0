"""The catalogue of statistics: each is declared once, whole, and used by its declaration."""

import ast
import re
from collections import Counter as Tally
from pathlib import Path

import pytest

from tidegate.catalogue.services import DECLARED, INSTRUMENTS, families_of, statistics_of, texts_of
from tidegate.launch.services import SERVICES
from tools.monitoring.metric_pages import metric_pages, unexported

ROOT = Path(__file__).parents[2]
WRITERS = {"add", "set", "label", "value"}
NAME = re.compile(r"[a-z][a-z0-9_.*]*")


def board_calls(source: str) -> list[ast.Call]:
    """Calls that write or read a statistics board, as ``stats.add(...)`` or ``context.stats.add(...)``."""
    if "stats." not in source:
        return []  # most modules: parsing all of them takes seconds
    return [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in WRITERS
        and ast.unparse(node.func.value).rpartition(".")[2] in ("stats", "_stats")
    ]


def test_every_service_the_supervisor_and_the_operator_declare_statistics() -> None:
    assert set(DECLARED) == {*SERVICES, "supervisor", "operator"}
    assert all(statistics_of(service) for service in DECLARED)


def test_every_module_of_the_catalogue_with_statistics_belongs_to_a_service() -> None:
    used = {
        module.__name__.rpartition(".")[2] for declared in DECLARED.values() for module in declared.modules
    }
    declared = {path.stem for path in (ROOT / "services/tidegate/catalogue").glob("*.py")}
    assert declared - used == {"__init__", "kinds", "services", "telemetry"}


@pytest.mark.parametrize("service", DECLARED)
def test_every_statistic_has_a_name_a_unit_and_a_meaning(service: str) -> None:
    for each in (*statistics_of(service), *families_of(service), *texts_of(service)):
        name = each.pattern if not isinstance(each, str) else each
        assert NAME.fullmatch(name), name
        assert each.meaning[0].isupper() or each.meaning[0].isdigit(), name
        assert each.meaning.endswith("."), name
        # Fractions, states and rewards have no unit; counts name what they count.
        assert each.unit or not name.endswith("_total"), name


@pytest.mark.parametrize("service", DECLARED)
def test_names_are_unique_within_a_service(service: str) -> None:
    names = [str(each) for each in (*statistics_of(service), *texts_of(service))]
    names += [each.pattern for each in families_of(service)]
    assert [name for name, number in Tally(names).items() if number > 1] == []


@pytest.mark.parametrize("service", DECLARED)
def test_a_counter_ends_in_total_and_nothing_else_does(service: str) -> None:
    """Readers distinguish counters from gauges by it."""
    for each in statistics_of(service):
        assert each.endswith("_total") == (each.kind == "counter"), each


def test_one_metric_has_one_declaration() -> None:
    """Statistics that share a metric share its instrument, so that unit and meaning cannot differ."""
    found: dict[str, set[tuple[str, str, str]]] = {}
    for service in DECLARED:
        exported = [each.export.instrument for each in statistics_of(service) if each.export is not None]
        exported += [each.instrument for each in families_of(service) if each.instrument is not None]
        for instrument in exported:
            found.setdefault(instrument, set()).add((instrument.kind, instrument.unit, instrument.meaning))
    assert {name: metrics for name, metrics in found.items() if len(metrics) > 1} == {}
    assert found.keys() <= INSTRUMENTS.keys()


def test_no_text_goes_to_a_board() -> None:
    for folder in ("services", "benchmarks", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            for call in board_calls(path.read_text(encoding="utf-8")):
                if call.args:
                    assert not isinstance(call.args[0], ast.Constant | ast.JoinedStr), (path, call.lineno)


def test_the_page_of_metrics_lists_what_is_not_exported() -> None:
    page = metric_pages()["metrics.md"]
    assert f"{len(unexported())} statistics are not exported" in page
    assert all(f"| `{name}` |" in page for _, name, _ in unexported())
