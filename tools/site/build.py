"""Build the documentation site: every document of the repository, by MkDocs with its Material theme (`make site`).

The documents are written to be read in the repository, with links to run files, sources and folders. They are staged in
the repository's own layout, with the files that they link to, so that each link works in the site as well; MkDocs then
refuses a link or an anchor that leads nowhere. The index of `docs/README.md` is the navigation.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
CONFIG = Path(__file__).with_name("mkdocs.yml")
STAGE = ROOT / ".build" / "site-pages"
OUTPUT = ROOT / ".build" / "site-html"
INDEX = ROOT / "docs" / "README.md"
# Documents outside of docs/ that others link to.
PAGES = ("*.md", "docs/**/*.md", "helm/tidegate/*.md", "k8s/*.md", "examples/**/*.md")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(```|~~~)")
ROW = re.compile(r"^\| (?:\*\*(\w+)\*\*)? ?\| (.*?) \|")
# A source as large as this is data and no reading.
FILE_BYTES_MAX = 1 << 20


def main() -> int:
    """Stage the documents and run MkDocs; returns its exit code."""
    shutil.rmtree(STAGE, ignore_errors=True)
    for page in pages():
        text = "".join(staged_lines(page))
        target = STAGE / page.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    config = STAGE.with_suffix(".yml")
    document = {"INHERIT": str(CONFIG), "docs_dir": str(STAGE), "site_dir": str(OUTPUT), "nav": navigation()}
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    mkdocs = ROOT / ".build" / "site" / "bin" / "mkdocs"
    return subprocess.run([mkdocs, "build", "--config-file", config], check=False).returncode


def pages() -> list[Path]:
    """The documents of the repository."""
    return sorted({page for pattern in PAGES for page in ROOT.glob(pattern)})


def staged_lines(page: Path) -> Iterator[str]:
    """The lines of a document with links as they are in the site; the files that it links to are staged."""
    fenced = False
    for line in page.read_text(encoding="utf-8").splitlines(keepends=True):
        if FENCE.match(line.lstrip()):
            fenced = not fenced
        yield line if fenced else LINK.sub(lambda match: staged_link(page, match), line)


def staged_link(page: Path, match: re.Match[str]) -> str:
    """A link to a document, to a staged copy of a file, or the text alone where it leads to a folder without a page."""
    image, text, path, anchor = match.group(1), match.group(2), match.group(3), match.group(4) or ""
    if not path or ":" in path:
        return match.group(0)
    target = (page.parent / path).resolve()
    if target.is_dir() and (target / "README.md").is_file():
        return f"{image}[{text}]({path.rstrip('/')}/README.md{anchor})"
    if target.suffix == ".md":
        return match.group(0)  # MkDocs judges it
    if not target.is_file() or target.stat().st_size > FILE_BYTES_MAX:
        return text
    copy = STAGE / target.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(target, copy)
    return match.group(0)


def navigation() -> list[dict[str, str | list[str]]]:
    """The rows of the index's table as sections: the first column names the reader, the second the pages."""
    sections: list[dict[str, str | list[str]]] = [
        {"Tidegate": "README.md"},
        {"All documents": "docs/README.md"},
    ]
    entries: list[str] = []
    named = {"README.md", "docs/README.md"}
    for line in INDEX.read_text(encoding="utf-8").splitlines():
        row = ROW.match(line)
        if row is None:
            continue
        if row.group(1):
            entries = []
            sections.append({row.group(1).capitalize(): entries})
        for link in LINK.finditer(row.group(2)):
            path = (INDEX.parent / link.group(3)).resolve().relative_to(ROOT).as_posix()
            if path not in named:
                named.add(path)
                entries.append(path)
    return sections


if __name__ == "__main__":
    sys.exit(main())
