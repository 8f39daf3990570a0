"""The countdown game: any right expression wins, nothing else does, and no expression is ever evaluated as code."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import RecordError
from tidegate.environment.tasks.countdown import Countdown
from tidegate.environment.tasks.expressions import DEPTH_MAX, LENGTH_MAX, evaluate
from tidegate.environment.tasks.port import Problem

TASK = Countdown()
PROBLEM = Problem("p", "make 22 from 3 5 7:", "(3*5)+7", "numbers-3")

Tree = tuple[str, Fraction, tuple[int, ...]]


def joined(pair: tuple[Tree, Tree], operator: str) -> Tree:
    """Two expressions joined into one with brackets, and its value computed meanwhile."""
    (left, left_value, left_numbers), (right, right_value, right_numbers) = pair
    if operator == "/" and right_value == 0:
        operator = "+"
    value = {
        "+": lambda: left_value + right_value,
        "-": lambda: left_value - right_value,
        "*": lambda: left_value * right_value,
        "/": lambda: left_value / right_value,
    }[operator]()
    return f"({left}){operator} ({right})", value, left_numbers + right_numbers


leaves = st.integers(0, 30).map(lambda number: (str(number), Fraction(number), (number,)))
trees = st.recursive(
    leaves,
    lambda inner: st.builds(joined, st.tuples(inner, inner), st.sampled_from("+-*/")),
    max_leaves=6,
)


@given(trees)
def test_expressions_are_worth_what_their_tree_is(tree: Tree) -> None:
    text, value, numbers = tree
    result = evaluate(text)
    assert (result.value, result.numbers) == (value, numbers)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2+3*4", 14),
        ("2*3+4", 10),
        ("8-3-2", 3),
        ("8/4/2", 1),
        ("8-(3-2)", 7),
        (" 7 ", 7),
        ("7/2", Fraction(7, 2)),
    ],
)
def test_products_bind_tighter_and_equals_go_from_the_left(text: str, value: Fraction) -> None:
    assert evaluate(text).value == value


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "+", "3+", "-3", "3 5", "3**5", "3//5", "(3", "3)", "()", "1/0", "4/(2-2)", "x", "3.5", "__import__",
        "1e9", "3;4", "٣+1", "²", "9999999", "(" * (DEPTH_MAX + 2) + "1" + ")" * (DEPTH_MAX + 2),
        "1+" * LENGTH_MAX + "1",
    ],
)  # fmt: skip
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(RecordError):
        evaluate(text)


@given(st.text(alphabet="0123456789+-*/() ", max_size=40))
def test_any_text_of_the_right_characters_is_a_value_or_a_record_error(text: str) -> None:
    try:
        evaluate(text)
    except RecordError:
        return


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("(3*5)+7", 1.0),
        ("7+5*3", 1.0),
        ("3+5+7", 0.1),
        ("7*3", 0.1),
        ("22", 0.0),
        ("7+3*5=22", 0.0),
        ("3*5+7+7-7", 0.0),
        ("11*2", 0.0),
        ("3*5+7\N{HORIZONTAL ELLIPSIS}", 0.0),
    ],
)
def test_target_must_be_reached_with_the_given_numbers_each_once(completion: str, reward: float) -> None:
    assert TASK.score(PROBLEM, completion).reward == reward


def test_every_problem_shows_the_numbers_and_the_target_of_a_solution() -> None:
    for problem in TASK.problems("heldout", seed=0):
        solution = evaluate(problem.answer)
        shown = " ".join(str(number) for number in sorted(solution.numbers))
        assert problem.prompt == f"make {solution.value} from {shown}:"
        assert problem.bin == f"numbers-{len(solution.numbers)}"
