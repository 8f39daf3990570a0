"""Rules for the form of a text that a program can verify, each with its sentence in the prompt and its check.

Checks are total, and a text without a word fulfils none of them: an empty text would otherwise obey "use no commas".
"""

import re
from collections.abc import Callable
from typing import cast

import msgspec

from tidegate.core.json_text import NOT_JSON

_WORD = re.compile(r"[A-Za-z0-9']+")
_SENTENCE_END = re.compile(r"[.!?]+(?:\s|$)")
_BULLET = re.compile(r"- \S")
_NUMBERED = re.compile(r"([0-9]{1,3})\. \S")


class FormatRule(msgspec.Struct, frozen=True):
    """One rule of a problem: its kind, a number where the kind counts, words where it names some."""

    kind: str
    count: int = 0
    words: tuple[str, ...] = ()


def words_of(text: str) -> list[str]:
    """The words of a text: letters, digits and apostrophes."""
    return _WORD.findall(text)


def holds(rule: FormatRule, text: str) -> bool:
    """Whether a text keeps a rule; an unknown kind is kept by none."""
    kind = KINDS.get(rule.kind)
    return kind is not None and bool(words_of(text)) and kind[1](rule, text)


def sentence(rule: FormatRule) -> str:
    """The rule as text of a prompt."""
    return KINDS[rule.kind][0].format(
        count=rule.count,
        word=rule.words[0] if rule.words else "",
        words=", ".join(f'"{word}"' for word in rule.words),
    )


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _exact_words(rule: FormatRule, text: str) -> bool:
    return len(words_of(text)) == rule.count


def _bullets(rule: FormatRule, text: str) -> bool:
    lines = _lines(text)
    return len(lines) == rule.count and all(_BULLET.match(line) for line in lines)


def _numbered(rule: FormatRule, text: str) -> bool:
    found = [_NUMBERED.match(line) for line in _lines(text)]
    return [match and match.group(1) for match in found] == [str(1 + index) for index in range(rule.count)]


def _sentences(rule: FormatRule, text: str) -> bool:
    ends = _SENTENCE_END.findall(text)
    return len(ends) == rule.count and text.rstrip()[-1] in ".!?"


def _paragraphs(rule: FormatRule, text: str) -> bool:
    parts = text.split("***")
    return len(parts) == rule.count and all(words_of(part) for part in parts)


def _json_keys(rule: FormatRule, text: str) -> bool:
    try:
        value = msgspec.json.decode(text.strip())
    except NOT_JSON:
        return False
    if not isinstance(value, dict):
        return False
    members = cast("dict[str, object]", value)
    return set(members) == set(rule.words) and all(
        isinstance(item, str) and words_of(item) for item in members.values()
    )


def _upper(_rule: FormatRule, text: str) -> bool:
    return text == text.upper() and any(letter.isalpha() for letter in text)


def _lower(_rule: FormatRule, text: str) -> bool:
    return text == text.lower() and any(letter.isalpha() for letter in text)


def _no_commas(_rule: FormatRule, text: str) -> bool:
    return "," not in text


def _mention(rule: FormatRule, text: str) -> bool:
    return [word.lower() for word in words_of(text)].count(rule.words[0]) == rule.count


def _first_word(rule: FormatRule, text: str) -> bool:
    return words_of(text)[0].lower() == rule.words[0]


def _last_word(rule: FormatRule, text: str) -> bool:
    return words_of(text)[-1].lower() == rule.words[0]


# By kind: the sentence of the prompt, and the check of a text that has words.
KINDS: dict[str, tuple[str, Callable[[FormatRule, str], bool]]] = {
    "words": ("Use exactly {count} words.", _exact_words),
    "bullets": ('Write exactly {count} bullet points, one a line, each begun with "- ".', _bullets),
    "numbered": ('Write a numbered list of exactly {count} lines: "1. ", "2. " and so on.', _numbered),
    "sentences": ("Write exactly {count} sentences.", _sentences),
    "paragraphs": ('Write exactly {count} paragraphs with "***" between them.', _paragraphs),
    "json_keys": (
        "Answer with one JSON object whose keys are {words} and whose values are texts.",
        _json_keys,
    ),
    "upper": ("Use upper case letters only.", _upper),
    "lower": ("Use lower case letters only.", _lower),
    "no_commas": ("Use no commas.", _no_commas),
    "mention": ('Use the word "{word}" exactly {count} times.', _mention),
    "first_word": ('Let the first word be "{word}".', _first_word),
    "last_word": ('Let the last word be "{word}".', _last_word),
}
