"""Targets of the documents exist: relative links, and the source files that architecture pages name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "services" / "tidegate"
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
# `task_queue/loops.py`: a file of a folder under services/tidegate or under the root.
SOURCE_FILE = re.compile(r"`((?:\w+/)+\w+\.(?:py|toml|yaml|proto|tpl))`")
PACKAGES = sorted(path.parent.name for path in SOURCES.glob("*/__init__.py"))
# `core.staleness.judge`: a module, or a name that is defined in one.
MODULE = re.compile(rf"`((?:{'|'.join(PACKAGES)})(?:\.\w+)+)`")
# Pages about the code; in others such words are keys of the run file.
ABOUT_CODE = ("architecture.md", "invariants.md", "glossary.md")
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "runbooks" not in path.parts),
    *sorted((ROOT / "helm").glob("*/*.md")),
    ROOT / "k8s" / "README.md",
]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_files_that_a_page_names_exist(page: Path) -> None:
    # Retired names are of files that are gone.
    text = page.read_text(encoding="utf-8").partition("## Retired words")[0]
    broken = [target for target in LINK.findall(text) if not (page.parent / target).exists()]
    missing = [
        name
        for name in SOURCE_FILE.findall(text)
        if any((folder / name).parents[name.count("/") - 1].is_dir() for folder in (ROOT, SOURCES))
        and not any((folder / name).exists() for folder in (ROOT, SOURCES))
    ]
    assert broken + missing == []


@pytest.mark.parametrize("name", ABOUT_CODE)
def test_modules_that_a_page_names_exist(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8").partition("## Retired words")[0]
    assert [module for module in MODULE.findall(text) if not is_defined(module)] == []


def is_defined(dotted: str) -> bool:
    """Whether a dotted name is a package, a module, or a name at the top of a module."""
    parts = dotted.split(".")
    path = SOURCES.joinpath(*parts)
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    module = SOURCES.joinpath(*parts[:-1]).with_suffix(".py")
    defines = re.compile(rf"^(def|class|async def) {parts[-1]}\b|^{parts[-1]}\b.*=", re.MULTILINE)
    return module.is_file() and bool(defines.search(module.read_text(encoding="utf-8")))
