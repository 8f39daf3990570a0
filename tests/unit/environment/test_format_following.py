"""Rules for the form of a text: each check against texts that keep and that break it."""

import json

import msgspec
import pytest

from tidegate.environment.tasks.format_following import FormatFollowing, obedient
from tidegate.environment.tasks.format_rules import KINDS, FormatRule, holds, sentence
from tidegate.environment.tasks.port import Problem

TASK = FormatFollowing()

KEPT_AND_BROKEN: dict[str, tuple[FormatRule, list[str], list[str]]] = {
    "words": (FormatRule("words", 3), ["one two three", "It's a dog!"], ["one two", "one two three four"]),
    "bullets": (
        FormatRule("bullets", 2),
        ["- a\n- b", "- a\n\n- b\n"],
        ["- a", "- a\n- b\n- c", "- a\nb", "* a\n* b", "-a\n-b"],
    ),
    "numbered": (
        FormatRule("numbered", 2),
        ["1. a\n2. b"],
        ["1. a", "1. a\n3. b", "2. a\n1. b", "1) a\n2) b", "1. a\n2. b\nc"],
    ),
    "sentences": (
        FormatRule("sentences", 2),
        ["Hi. You!", "A b? C."],
        ["Hi.", "Hi. You", "A. B. C.", "Pi is 3.1. Yes"],
    ),
    "paragraphs": (FormatRule("paragraphs", 2), ["a\n***\nb"], ["a b", "a\n***\n", "a***b***c"]),
    "json_keys": (
        FormatRule("json_keys", words=("mood", "title")),
        ['{"title": "a", "mood": "b"}', ' {"mood":"a","title":"b"}\n'],
        [
            '{"title": "a"}',
            '{"title":"a","mood":"b","x":"c"}',
            '{"title":1,"mood":"b"}',
            '["title","mood"]',
            "title mood",
            '{"title":"a","mood":""}',
            '```json\n{"title": "a", "mood": "b"}\n```',
            '{"title": "a", "mood": "b"',
        ],
    ),
    "upper": (FormatRule("upper"), ["A B 3"], ["A b", "33"]),
    "lower": (FormatRule("lower"), ["a b 3"], ["A b", "33"]),
    "no_commas": (FormatRule("no_commas"), ["a; b"], ["a, b"]),
    "mention": (
        FormatRule("mention", 2, ("salt",)),
        ["Salt and salt"],
        ["salt", "salt salt salt", "salty salt"],
    ),
    "first_word": (FormatRule("first_word", words=("salt",)), ["Salt is", "- salt"], ["the salt", "salty"]),
    "last_word": (FormatRule("last_word", words=("salt",)), ["more SALT."], ["salt more", "a saltsalt"]),
}


def test_every_kind_has_texts_that_keep_and_break_it() -> None:
    assert KEPT_AND_BROKEN.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_rule_holds_for_texts_that_keep_it_and_for_no_other(kind: str) -> None:
    rule, kept, broken = KEPT_AND_BROKEN[kind]
    assert [text for text in kept if not holds(rule, text)] == []
    assert [text for text in broken if holds(rule, text)] == []


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("text", ["", " \n", "...", "***", "- \n- "])
def test_silence_keeps_no_rule(kind: str, text: str) -> None:
    assert not holds(KEPT_AND_BROKEN[kind][0], text)


def test_unknown_rule_is_kept_by_no_text() -> None:
    assert not holds(FormatRule("rhyme"), "a day in may")


def test_prompt_names_the_topic_and_every_rule() -> None:
    for problem in TASK.problems("train", seed=0)[:300]:
        rules = msgspec.json.decode(problem.answer, type=list[FormatRule])
        assert problem.bin == f"rules-{len(rules)}"
        assert problem.prompt.startswith("Write about ")
        assert all(sentence(rule) in problem.prompt for rule in rules)


def test_every_problem_can_be_obeyed_and_breaking_any_one_rule_costs() -> None:
    for problem in TASK.problems("heldout", seed=0):
        text = obedient(problem)
        assert TASK.score(problem, text).reward == 1.0, (problem, text)
        for rule in msgspec.json.decode(problem.answer, type=list[FormatRule]):
            score = TASK.score(problem, broken_text(rule, text))
            assert score.reward <= 0.5, (problem, rule)
            assert score.components[rule.kind] == 0.0


def broken_text(rule: FormatRule, text: str) -> str:
    """The text with this rule broken, and possibly others."""
    match rule.kind:
        case "upper":
            return text + " a"
        case "lower":
            return text + " A"
        case "no_commas":
            return text + ", so"
        case "mention":
            return f"{text} {rule.words[0]}"
        case "first_word":
            return f"no {text}"
        case "last_word":
            return f"{text} no"
        case "json_keys":
            return json.dumps(json.loads(text) | {"more": "a"})
        case _:
            return f"{text}\nmore\n***\nthings without end"


def test_reward_is_half_of_the_share_of_rules_kept_until_all_are() -> None:
    rules = [
        FormatRule("words", 2),
        FormatRule("no_commas"),
        FormatRule("lower"),
        FormatRule("last_word", words=("salt",)),
    ]
    problem = Problem("p", "", json.dumps([msgspec.to_builtins(rule) for rule in rules]), "rules-4")
    score = TASK.score(problem, "Some, salt")
    assert score.reward == pytest.approx(0.25)
    assert score.components == {"exact": 0.0, "words": 1.0, "no_commas": 0.0, "lower": 0.0, "last_word": 1.0}
    assert score.log == "broken: no_commas, lower"
