"""Addition on paper: right steps for any two numbers, and lengths that vary tenfold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.environment.tasks.long_addition import LongAddition, worked_out
from tidegate.environment.tasks.port import Problem

TASK = LongAddition()
PROBLEM = Problem("47+38", "47+38=", "7815;4308;085", "digits-2")


@given(
    st.integers(1, 40).flatmap(
        lambda digits: st.tuples(*[st.integers(10 ** (digits - 1), 10**digits - 1)] * 2)
    )
)
def test_steps_add_up_to_the_sum(pair: tuple[int, int]) -> None:
    left, right = str(pair[0]), str(pair[1])
    *steps, answer = worked_out(left, right).split(";")
    assert int(answer) == sum(pair)
    assert len(answer) == len(left) + 1
    carry = 0
    for position, step in enumerate(steps):
        assert (step[0], step[1]) == (left[-1 - position], right[-1 - position])
        assert int(step[2:]) == int(step[0]) + int(step[1]) + carry
        carry = int(step[2])
    assert "".join([answer[0], *(step[3] for step in reversed(steps))]) == f"{carry}{answer[1:]}"


def test_lengths_vary_tenfold_and_the_prompt_sets_them() -> None:
    problems = TASK.problems("train", seed=0)
    lengths = sorted(len(problem.answer) for problem in problems)
    assert lengths[len(lengths) * 99 // 100] >= 10 * lengths[len(lengths) // 10]
    for problem in problems[:500]:
        num_digits = problem.prompt.index("+")
        assert len(problem.answer) == 6 * num_digits + 1
        assert num_digits <= int(problem.bin.removeprefix("digits-"))


@pytest.mark.parametrize(
    ("completion", "reward", "steps"),
    [
        ("7815;4308;085", 1.0, 1.0),
        ("7815;4308;084", 0.2 * 2 / 3, 2 / 3),
        ("7815;4309;085", 0.2 / 3, 1 / 3),
        ("085", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("7815;4308;085;", 0.2, 1.0),
    ],
)
def test_steps_before_the_first_slip_are_worth_a_little(completion: str, reward: float, steps: float) -> None:
    score = TASK.score(PROBLEM, completion)
    assert score.reward == pytest.approx(reward)
    assert score.components == {"exact": float(reward == 1.0), "steps": pytest.approx(steps)}
