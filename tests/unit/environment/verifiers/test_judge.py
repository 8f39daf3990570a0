"""Grades parsed from a judge's reply, and the templates of its input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import ConfigError, RecordError
from tidegate.environment.tasks.port import Problem
from tidegate.environment.verifiers.judge import graded
from tidegate.environment.verifiers.settings import JudgeSettings
from tidegate.environment.verifiers.texts import filled, readable

JUDGE = JudgeSettings(base_url="http://localhost:1/v1", model="m")
BY_KEY = JudgeSettings(base_url="http://localhost:1/v1", model="m", score_key="grade", highest=1.0)


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ("Score: 7", 7.0),
        ("The first half would be score: 3, but all in all\nSCORE = 6.5\n", 6.5),
        ("score:10", 10.0),
        ("Score: 0", 0.0),
        ("A first score: 9 would be too kind.\n\n**Score:** 4", 4.0),
        ("**Score**: __7__", 7.0),
    ],
)
def test_last_match_of_the_pattern_is_the_grade(text: str, grade: float) -> None:
    assert graded(text, JUDGE) == grade


@pytest.mark.parametrize(
    "text", ["", "seven", "7", "Score: 11", "Score: -1", "Score: seven", "Score: 7\nScore: 77"]
)
def test_text_without_a_grade_on_the_scale_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match="gave no grade from 0 to 10"):
        graded(text, JUDGE)


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ('{"grade": 0.5}', 0.5),
        ('So:\n```json\n{"why": "ok", "grade": 1}\n```', 1.0),
        ('{"grade": "0.25"}', 0.25),
    ],
)
def test_grade_by_its_key(text: str, grade: float) -> None:
    assert graded(text, BY_KEY) == grade


@pytest.mark.parametrize(
    "text",
    ["", "0.5", "[0.5]", '{"grade": null}', '{"grade": true}', '{"grade": "nan"}', '{"grade": 2}', '{"other": 1}',
     '{"grade": [1]}', '{"grade": 0.5', '{"grade": 1e999}'],
)  # fmt: skip
def test_json_without_a_grade_on_the_scale_is_refused(text: str) -> None:
    with pytest.raises(RecordError):
        graded(text, BY_KEY)


@given(st.text())
def test_any_text_is_graded_or_refused(text: str) -> None:
    for settings in (JUDGE, BY_KEY):
        try:
            assert settings.lowest <= graded(text, settings) <= settings.highest
        except RecordError:
            continue


@given(st.text(), st.text(), st.text())
def test_templates_keep_braces_in_texts(prompt: str, answer: str, completion: str) -> None:
    problem = Problem("p", f"x{prompt}{{completion}}", answer, "all")
    shown = filled("{prompt}|{answer}|{completion}|{other}", problem, completion)
    assert shown == f"x{prompt}{{completion}}|{answer}|{completion}|{{other}}"


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        (
            '[{"role":"user","content":"Hi"},{"role":"assistant","content":"Yes?"}]',
            "user: Hi\nassistant: Yes?",
        ),
        ("[1, 2]", "[1, 2]"),
        ("47+38=", "47+38="),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_chats_are_shown_as_plain_lines(prompt: str, shown: str) -> None:
    assert readable(prompt) == shown


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"base_url": "judge:80"}, "base_url"),
        ({"rubric": "Is {prompt} good?"}, "does not show the completion"),
        ({"score_pattern": "score: ("}, "no regular expression"),
        ({"score_pattern": "score: [0-9]"}, "has 0 groups"),
        ({"lowest": 5.0, "highest": 5.0}, "grades go from 5 to 5"),
    ],
)
def test_judge_settings_that_give_no_grade_are_refused(change: dict[str, object], problem: str) -> None:
    fields: dict[str, object] = {"base_url": "http://localhost:1/v1", "model": "m"} | change
    with pytest.raises(ConfigError, match=problem):
        JudgeSettings(**fields)  # pyright: ignore[reportArgumentType]  fields by name
