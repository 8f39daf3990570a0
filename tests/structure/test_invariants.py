"""Every invariant that is cited is defined on the invariants page, and every test that the page lists exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "invariants.md"
HEADING = re.compile(r"^## I(\d+) \S", re.MULTILINE)
CITATION = re.compile(r"\bI(\d{1,2})\b")
TEST_REFERENCE = re.compile(r"^- `(tests/[\w/]+\.py)::(test_\w+)`$", re.MULTILINE)
CITING = ("services", "tests", "docs", "tools", "benchmarks", "examples", "protos", "helm", "runs")
SUFFIXES = frozenset({".py", ".md", ".yaml", ".proto", ".tpl"})
# These cite none: generated code, and the names of integer types in the safetensors format.
EXCLUDED = (
    ROOT / "services" / "tidegate" / "v1",
    ROOT / "services" / "tidegate" / "models" / "safetensors_header.py",
)


def entries() -> dict[int, str]:
    """The text of each invariant's entry, by number."""
    text = PAGE.read_text(encoding="utf-8")
    headings = list(HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    return {int(found[1]): text[found.end() : end] for found, end in zip(headings, ends, strict=True)}


def citing_files() -> list[Path]:
    """Every file that may cite an invariant."""
    files = [
        path for folder in CITING for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES
    ]
    files += sorted(ROOT.glob("*.md"))
    return [path for path in files if not any(path.is_relative_to(excluded) for excluded in EXCLUDED)]


def test_page_defines_each_invariant_once_in_order() -> None:
    numbers = [int(found) for found in HEADING.findall(PAGE.read_text(encoding="utf-8"))]
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers


def test_every_cited_invariant_is_defined() -> None:
    defined = entries().keys()
    undefined = [
        f"{path.relative_to(ROOT)}: I{number}"
        for path in citing_files()
        for number in CITATION.findall(path.read_text(encoding="utf-8"))
        if int(number) not in defined
    ]
    assert undefined == []


@pytest.mark.parametrize("number", sorted(entries()))
def test_every_test_of_an_invariant_exists(number: int) -> None:
    references = TEST_REFERENCE.findall(entries()[number])
    assert references, f"I{number} names no test that holds it"
    missing = [
        f"{path}::{name}"
        for path, name in references
        if not (ROOT / path).is_file()
        or not re.search(
            rf"^\s*(async )?def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    assert missing == []
