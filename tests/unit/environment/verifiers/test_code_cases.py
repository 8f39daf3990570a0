"""Cases of hidden tests: how they are read, and how plain answers are compared with them."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import RecordError
from tidegate.environment.config import EnvironmentConfig
from tidegate.environment.verifiers.code_cases import CASES_MAX, equal, parse_tests, passed, program_in
from tidegate.environment.verifiers.settings import CodeSettings

plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ADD = parse_tests(
    '{"function": "add", "cases": [{"arguments": [1], "result": 1}, {"arguments": [2], "result": 2}]}'
)


@given(plain_values)
def test_value_equals_itself_after_json(value: Any) -> None:
    assert equal(json.loads(json.dumps(value)), value, relative_tolerance=0.0)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (True, 1), (1, True), (1.0, 1), ("1", 1), (None, 0), (0, None), ([1], [1, 2]), ([2, 1], [1, 2]), ({}, []),
        ({"a": 1}, {"a": 2}), ({"a": 1, "b": 1}, {"a": 1}), (True, 1.0), (10**400, 1.5), ([True], [1]), ("a", "b"),
    ],
)  # fmt: skip
def test_values_that_differ_in_kind_or_content_are_not_equal(answer: Any, expected: Any) -> None:
    assert not equal(answer, expected, relative_tolerance=1e-9)


def test_floats_are_compared_within_the_tolerance_and_a_whole_number_is_one() -> None:
    assert equal(0.1 + 0.2, 0.3, relative_tolerance=1e-9)
    assert not equal(0.1 + 0.2, 0.3, relative_tolerance=0.0)
    assert equal(2, 2.0, relative_tolerance=0.0)
    assert equal(10**30, 10**30, relative_tolerance=0.0)
    assert not equal(10**30 + 1, 10**30, relative_tolerance=0.1)


@pytest.mark.parametrize(
    ("output", "marks"),
    [
        ('{"result": 1}\n{"result": 2}\n', [True, True]),
        ('{"result": 1}\n', [True, False]),
        ("", [False, False]),
        ('{"error": "ValueError"}\n{"result": 2}\n', [False, True]),
        ('{"result": 1}\n{"result": 2}\n{"result": 3}\n', [False, False]),
        ('{"result": 1}\n{"result": 2}\nx', [False, False]),
        ('{"result": 1, "error": ""}\n[]\n', [False, False]),
        ('{"result": NaN}\n{"result": 2', [False, False]),
    ],
)
def test_each_line_is_one_answer_and_extra_output_fails_all(output: str, marks: list[bool]) -> None:
    assert passed(output, ADD, relative_tolerance=0.0) == marks


@given(st.text())
def test_any_output_has_a_verdict(output: str) -> None:
    assert passed(output, ADD, relative_tolerance=0.0) == [False, False]


def test_output_that_a_decoder_refuses_is_wrong() -> None:
    deep, long = "[" * 30_000 + "\n", '{"result": ' + "9" * 30_000 + "}\n"
    assert passed(deep + long, ADD, relative_tolerance=0.0) == [False, False]


@pytest.mark.parametrize(
    "answer",
    ["", "42", "{}", '{"function": "a b", "cases": [{"arguments": [], "result": 1}]}', '{"function": "f", "cases": []}',
     '{"function": "f", "cases": [{"arguments": 1, "result": 1}]}', '{"function": "f", "cases": [{"arguments": []}]}',
     '{"function": "f", "cases": [{"arguments": [], "result": NaN}]}', "[" * 10_000],
)  # fmt: skip
def test_answer_without_tests_is_named(answer: str) -> None:
    with pytest.raises(RecordError, match="holds no tests"):
        parse_tests(answer)


def test_size_and_number_of_cases_are_bounded() -> None:
    with pytest.raises(RecordError, match="have 1,048,576 characters"):
        parse_tests("x" * (1 << 20))
    cases = [{"arguments": [1], "result": 1}] * (CASES_MAX + 1)
    with pytest.raises(RecordError):
        parse_tests(json.dumps({"function": "f", "cases": cases}))


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("```python\nx\n```", "x\n"),
        ("```py\nx\n```", "x\n"),
        ("```\nx\n```", "x\n"),
        ("```python\nx\n``` or ```python\ny\n```", "y\n"),
        ("x = 1", None),
        ("```python\nx", None),
        ("```json\n{}\n```\nthen\n```python\nx\n```", "x\n"),
        ("```bash\npip\n```\n```Python\r\nx\n```\n```text\ny\n```", "x\n"),
        ("as ```x``` says:\n```python3\ny\n```", "y\n"),
        ("```sql\nselect\n```", None),
    ],
)
def test_last_fenced_block_is_the_program(completion: str, program: str | None) -> None:
    assert program_in(completion) == program


def test_run_file_chooses_it_by_its_kind() -> None:
    section = {"rewards": {"tests": 1.0}, "verifiers": {"tests": {"kind": "code", "credit": "share"}}}
    assert msgspec.convert(section, EnvironmentConfig).verifiers == {"tests": CodeSettings(credit="share")}
