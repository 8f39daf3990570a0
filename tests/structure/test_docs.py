"""What the documents point at exists: relative links, and the source files that architecture pages name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "services" / "tidegate"
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
# `task_queue/loops.py`: a file of a folder under services/tidegate or under the root.
SOURCE_FILE = re.compile(r"`((?:\w+/)+\w+\.(?:py|toml|yaml|proto|tpl))`")
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "runbooks" not in path.parts),
    *sorted((ROOT / "helm" / "tidegate").glob("*.md")),
    ROOT / "k8s" / "README.md",
]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    broken = [target for target in LINK.findall(text) if not (page.parent / target).exists()]
    missing = [
        name
        for name in SOURCE_FILE.findall(text)
        if any((folder / name).parents[name.count("/") - 1].is_dir() for folder in (ROOT, SOURCES))
        and not any((folder / name).exists() for folder in (ROOT, SOURCES))
    ]
    assert broken + missing == []
