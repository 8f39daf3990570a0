"""Commands that the documents tell their readers to type: where each stands, and its words. Nothing is run."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidegate.cli.registry import COMMANDS

ROOT = Path(__file__).parents[2]
PROGRAMS = ("tidegate", "helm", "kubectl", "make")
# Changelogs tell of commands that were; the second table of the glossary of words that are no longer used.
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "k8s/README.md")),
    *(
        ROOT / "helm" / name
        for name in ("tidegate/README.md", "tidegate/UPGRADING.md", "tidegate-operator/README.md")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
)
RETIRED = "## Retired words"

FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
SHELLS = ("", "sh", "bash", "console", "shell")
INDENTED = re.compile(r"^ {4,}(?=\S)(.*)$", re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")
COMMENT = re.compile(r"(?:^|\s+)# .*$", re.MULTILINE)
# The output of another command, as a word of this one.
SUBSTITUTION = re.compile(r"\$\((?:[^()]|\([^()]*\))*\)")
ENDS = ("|", "||", "&&", ";", "&")


@dataclass(frozen=True, slots=True)
class DocumentedCommand:
    """``words`` begin with the program. ``complete``: a line to be typed; a mention may leave arguments out."""

    words: tuple[str, ...]
    complete: bool

    def __str__(self) -> str:
        return shlex.join(self.words)


def commands_of(page: Path) -> list[DocumentedCommand]:
    """The commands of a page, in lines of blocks and in code spans."""
    return list(commands_in(page.read_text(encoding="utf-8").partition(RETIRED)[0]))


def commands_in(text: str) -> Iterator[DocumentedCommand]:
    """The commands of a text in Markdown.

    Raises:
        ValueError: quotes of a line are not closed.
    """
    blocks = [body for language, body in FENCE.findall(text) if language in SHELLS]
    prose = FENCE.sub("", text)
    lines = [line for body in blocks for line in _lines(body)] + INDENTED.findall(prose)
    for line in lines:
        yield from _commands(line, complete=True)
    for span in SPAN.findall(INDENTED.sub("", prose)):
        yield from _commands(span, complete=False)


def _lines(block: str) -> list[str]:
    return block.replace("\\\n", " ").splitlines()


def _commands(line: str, *, complete: bool) -> Iterator[DocumentedCommand]:
    line = SUBSTITUTION.sub("VALUE", COMMENT.sub("", line))
    if not re.search(rf"(?:^|[\s/])(?:{'|'.join(PROGRAMS)})\s", line):
        return
    before = ""
    for words in _segments(shlex.split(line)):
        while words and (words[0] in ("do", "$", "then") or re.fullmatch(r"[A-Z_]+=\S*", words[0])):
            words = words[1:]
        if not words:
            continue
        program = words[0].rpartition("/")[2]
        if before == "tidegate" and program in COMMANDS:
            # `tidegate status | slo`: alternatives of the program before.
            program, words = "tidegate", ["tidegate", *words]
        before = program
        if program in PROGRAMS and len(words) > 1 and re.match(r"[a-z-]", words[1]):
            for command in _nested(DocumentedCommand((program, *words[1:]), complete)):
                before = command.words[0]
                yield command


def _nested(command: DocumentedCommand) -> Iterator[DocumentedCommand]:
    """The command, and what `kubectl exec POD -- COMMAND` runs in the pod."""
    if command.words[0] == "kubectl" and "--" in command.words:
        at = command.words.index("--")
        yield DocumentedCommand(command.words[:at], command.complete)
        if command.words[at + 1 : at + 2] == ("tidegate",):
            yield DocumentedCommand(command.words[at + 1 :], command.complete)
    elif command.words[0] == "tidegate" and "|" in command.words[1]:
        # `tidegate pause|resume`
        for name in command.words[1].split("|"):
            yield DocumentedCommand(("tidegate", name, *command.words[2:]), command.complete)
    else:
        yield command


def _segments(words: list[str]) -> Iterator[list[str]]:
    """The commands of a pipe or a list; a usage line without its brackets, and with the first of its alternatives."""
    segment: list[str] = []
    depth = 0
    for word in words:
        if depth == 0 and word in ENDS:
            yield segment
            segment = []
            continue
        opened = len(word) - len(word.lstrip("["))
        closed = min(len(word) - len(word.rstrip("]")), depth + opened)
        depth += opened
        inside = depth > 0
        text = word[opened : len(word) - closed]
        depth -= closed
        if inside:
            text = text.removesuffix("...").partition("|")[0]
        ends = not inside and text.endswith(";")
        if text.removesuffix(";") not in ("", "..."):
            segment.append(text.removesuffix(";") if ends else text)
        if ends:
            yield segment
            segment = []
    yield segment
