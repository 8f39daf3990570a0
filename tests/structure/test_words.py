"""Words that the glossary retired are used nowhere: not in names, files, comments, messages or documents."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
FOLDERS = ("services", "tests", "tools", "benchmarks", "docs", "helm", "runs", "protos", "examples")
SINGLE_FILES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "Containerfile", "pyproject.toml")
SUFFIXES = {".py", ".md", ".yaml", ".yml", ".tpl", ".txt", ".toml", ".proto", ".js", ".css", ".html", ".sh"}
ENTRY = re.compile(r"^\| `([^`|]+)` \| [^|]+ \|$", re.MULTILINE)
# A phrase may go over the end of a line, of a comment's too.
LINE_END = re.compile(r"\s+(?:(?:#+|//+|\*) )?")
# Files that hold a word as data.
DATA = {"bell": {"services/tidegate/environment/tasks/format_following.py"}}


def retired_words(glossary: str) -> list[str]:
    """The first column of the table under "Retired words"."""
    return ENTRY.findall(glossary.partition("## Retired words")[2])


def pattern(word: str) -> re.Pattern[str]:
    """Finds a name as it is written, also as a part of one that joins words by underscores; a phrase in either case."""
    is_name = any(character.isupper() or character == "_" for character in word)
    return re.compile(rf"(?<![A-Za-z]){re.escape(word)}(?![a-z])", 0 if is_name else re.IGNORECASE)


@cache
def texts() -> dict[str, str]:
    """What is checked, by path, on one line each; a path is a part of its text."""
    paths = [ROOT / name for name in SINGLE_FILES]
    for folder in FOLDERS:
        paths += [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]
    return {
        name: f"{name} {LINE_END.sub(' ', path.read_text(encoding='utf-8'))}"
        for path in paths
        if path.is_file() and path not in (GLOSSARY, Path(__file__)) and "v1" not in path.parts
        for name in [path.relative_to(ROOT).as_posix()]
    }


@cache
def lowered() -> dict[str, str]:
    """The same in lower case: to search it for a plain string is ten times quicker than for a pattern."""
    return {name: text.casefold() for name, text in texts().items()}


WORDS = retired_words(GLOSSARY.read_text(encoding="utf-8"))


def test_glossary_has_a_table_of_retired_words() -> None:
    assert len(WORDS) > 30


@pytest.mark.parametrize("word", WORDS)
def test_retired_word_is_used_nowhere(word: str) -> None:
    found, plain = pattern(word), word.casefold()
    using = {name for name, text in lowered().items() if plain in text and found.search(texts()[name])}
    assert using - DATA.get(word, set()) == set()


@pytest.mark.parametrize(
    ("word", "text", "is_found"),
    [
        ("bell", "self._bell.set()", True),
        ("bell", "Bells and labels", False),
        ("Desk", "class Desk:", True),
        ("Desk", "the desk", False),
        ("under way", "work that is under\n    # way now", True),
        ("anew", "Anew.", True),
        ("hands_on", "def hands_on(self)", True),
    ],
)
def test_pattern_finds_names_and_phrases(word: str, text: str, is_found: bool) -> None:
    assert bool(pattern(word).search(LINE_END.sub(" ", text))) == is_found
