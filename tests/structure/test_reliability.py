"""The matrix of faults: each cell names entries that exist or says so, and each entry names tests that exist."""

import re
from pathlib import Path

import pytest

from tidegate.launch.services import SERVICES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
TEST_REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
NOT_TESTED = "not tested"
DOES_NOT_APPLY = "-"


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, its first line included."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    assert lines, f"there is no table under {heading}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "| ---" not in line]


def entries() -> dict[str, list[str]]:
    """The cells of each entry, by its name."""
    return {cells[0]: cells for cells in rows("Entries")[1:]}


def test_matrix_has_every_service_and_the_broker() -> None:
    assert {*rows("Matrix")[0][1:]} == {*SERVICES, "broker"}


def test_every_cell_names_entries_or_says_that_it_is_not_tested() -> None:
    header, *faults = rows("Matrix")
    known = entries()
    wrong = [
        f"{cells[0]}: {service}: {cell!r}"
        for cells in faults
        for service, cell in zip(header[1:], cells[1:], strict=True)
        if cell not in (NOT_TESTED, DOES_NOT_APPLY)
        and not {name.strip() for name in cell.split(",")} <= known.keys()
    ]
    assert wrong == []


def test_every_entry_is_named_by_a_cell_and_names_a_test() -> None:
    named = {name.strip() for cells in rows("Matrix")[1:] for cell in cells[1:] for name in cell.split(",")}
    assert entries().keys() <= named
    assert [name for name, cells in entries().items() if not TEST_REFERENCE.search(cells[-1])] == []


def test_every_data_file_names_a_test_or_says_that_there_is_none() -> None:
    silent = [
        cells for cells in rows("Data files")[1:] if NOT_TESTED not in cells[-1] and "::" not in cells[-1]
    ]
    assert silent == []


@pytest.mark.parametrize(("path", "name"), sorted(set(TEST_REFERENCE.findall(TEXT))))
def test_every_cited_test_exists(path: str, name: str) -> None:
    assert (ROOT / path).is_file()
    defined = re.compile(rf"^\s*(async )?def {name}\(", re.MULTILINE)
    assert defined.search((ROOT / path).read_text(encoding="utf-8"))
