"""Hidden tests of a function: the cases of a problem, and the comparison of a program's answers with them.

Only plain data is compared, decoded from the program's output outside of the sandbox: no object, method or operator of
the code under test takes part.
"""

import json
import math
import re
from typing import Annotated, Any, NoReturn, cast

import msgspec

from tidegate.core.errors import RecordError

CASES_MAX = 256
# Leaves half of what the sandbox takes on stdin to the program.
ANSWER_CHARS_MAX = 1 << 19

# A fence within a line, or a block with its language: blocks of every language are read, so that the end of one is not
# taken for the beginning of the next.
_BLOCK = re.compile(r"```[^\n`]*```|```([^\n`]*)\n(.*?)```", re.DOTALL)
_PYTHON = frozenset({"", "python", "python3", "py"})


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call: the positional ``arguments`` and the ``result`` that is right, both plain JSON."""

    arguments: list[Any]
    result: Any


class CodeTests(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A problem's ``answer`` as JSON: the name of the function to write, and 1 to 256 cases."""

    function: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
    cases: Annotated[list[Case], msgspec.Meta(min_length=1, max_length=CASES_MAX)]


def parse_tests(answer: str) -> CodeTests:
    """The tests that a problem's answer holds.

    Raises:
        RecordError: it holds none.
    """
    if len(answer) > ANSWER_CHARS_MAX:
        raise RecordError(
            f"A problem's tests have {len(answer):,} characters",
            why=f"the limit is {ANSWER_CHARS_MAX:,}",
            fix="give the function fewer or smaller cases",
        )
    try:
        return msgspec.convert(_plain(answer), CodeTests)
    except (ValueError, RecursionError) as error:  # msgspec's ValidationError is a ValueError
        raise RecordError(
            "A problem's answer holds no tests of a function",
            why=str(error),
            fix='write {"function": "add", "cases": [{"arguments": [1, 2], "result": 3}]}',
        ) from error


def program_in(completion: str) -> str | None:
    """The last fenced block of a completion that is Python or names no language; None without one."""
    blocks = [
        block[2]
        for block in _BLOCK.finditer(completion)
        if block[2] is not None and block[1].strip().lower() in _PYTHON
    ]
    return blocks[-1] if blocks else None


def passed(output: str, tests: CodeTests, *, relative_tolerance: float) -> list[bool]:
    """Which cases the output answers rightly: one line for each call, in order.

    More lines than calls, or text after the last line, fail every case: the program wrote where only the results of its
    function belong.
    """
    *lines, rest = output.split("\n")
    if rest or len(lines) > len(tests.cases):
        return [False] * len(tests.cases)
    answered = [
        _right(line, case.result, relative_tolerance=relative_tolerance)
        for line, case in zip(lines, tests.cases, strict=False)
    ]
    return answered + [False] * (len(tests.cases) - len(lines))


def _right(line: str, expected: Any, *, relative_tolerance: float) -> bool:
    try:
        answer = _plain(line)
    except (ValueError, RecursionError):
        return False
    if not isinstance(answer, dict) or answer.keys() != {"result"}:  # an error, or none of our lines
        return False
    return equal(answer["result"], expected, relative_tolerance=relative_tolerance)


def equal(given: Any, expected: Any, *, relative_tolerance: float) -> bool:
    """Whether two values decoded from JSON are the same.

    A boolean is no number; where a float is expected a whole number may be given, and the other way round not; floats
    may differ by ``relative_tolerance``, and NaN equals nothing.
    """
    if isinstance(expected, float) and type(given) in (int, float):
        try:
            return math.isclose(given, expected, rel_tol=relative_tolerance)
        except OverflowError:  # a whole number that no float holds
            return False
    if type(given) is not type(expected):
        return False
    if isinstance(expected, list):
        items = cast("list[Any]", expected)
        return len(given) == len(items) and all(
            equal(one, other, relative_tolerance=relative_tolerance)
            for one, other in zip(given, items, strict=True)
        )
    if isinstance(expected, dict):
        fields = cast("dict[str, Any]", expected)
        return given.keys() == fields.keys() and all(
            equal(given[key], value, relative_tolerance=relative_tolerance) for key, value in fields.items()
        )
    return bool(given == expected)


def _plain(text: str) -> Any:
    """JSON without NaN and infinities, whole numbers exact.

    Raises:
        ValueError: it is none, or has a number of more digits than Python converts.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
