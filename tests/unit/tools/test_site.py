"""Documents as they are staged for the site."""

from pathlib import Path

import pytest

from tools.site import build


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A document of a small repository."""
    for name in ("docs/page.md", "docs/other.md", "runs/a.yaml", "examples/new/README.md", "services/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text", encoding="utf-8")
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "STAGE", tmp_path / "stage")
    return tmp_path / "docs" / "page.md"


@pytest.mark.parametrize(
    ("line", "staged"),
    [
        ("[a](other.md#part)", "[a](other.md#part)"),
        ("[a](#part) [b](https://example.org)", "[a](#part) [b](https://example.org)"),
        ("[the folder](../examples/new)", "[the folder](../examples/new/README.md)"),
        ("see [services](../services) and [gone](../gone.py)", "see services and gone"),
        ("[a](../runs/a.yaml)", "[a](../runs/a.yaml)"),
    ],
)
def test_links_are_those_of_the_site(page: Path, line: str, staged: str) -> None:
    page.write_text(line, encoding="utf-8")
    assert "".join(build.staged_lines(page)) == staged


def test_a_linked_file_is_in_the_site(page: Path) -> None:
    page.write_text("[a](../runs/a.yaml)", encoding="utf-8")
    list(build.staged_lines(page))
    assert (build.STAGE / "runs" / "a.yaml").read_text(encoding="utf-8") == "text"


def test_code_blocks_stay_as_they_are(page: Path) -> None:
    block = "```\nvalues[0](../services)\n```\n"
    page.write_text(block, encoding="utf-8")
    assert "".join(build.staged_lines(page)) == block


def test_the_index_of_the_documents_is_the_navigation() -> None:
    sections = {next(iter(each)): next(iter(each.values())) for each in build.navigation()}
    assert "docs/objectives.md" in sections["Users"]
    assert "docs/kubernetes.md" in sections["Operators"]
    assert "docs/invariants.md" in sections["Contributors"]
