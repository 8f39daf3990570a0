"""Sums in the words of a small chat model: "What is 23 + 31?" is answered "23 + 31 = 54".

The prompt is a JSON list of chat messages, with two turns that show the form: without them SmolLM2-135M runs on, and an
exact match scores 0 on everything. With them it solves a third of the problems before any training.
"""

import re
from collections.abc import Sequence

import msgspec

from tidegate.environment.tasks.port import Demonstration, Problem, Score, Split
from tidegate.environment.tasks.splits import right_answers, split_of

OPERAND_MAX = 50
EXAMPLES = ((14, 5), (8, 27))
# Reward of an equation with a wrong sum: it rewards the form, far below that of a right sum.
SHAPE_REWARD = 0.1
_EQUATION = re.compile(r"[0-9]{1,4} \+ [0-9]{1,4} = [0-9]{1,4}")


class Sums:
    """The task. Its curriculum bin is the number of carries: ``carries-0`` to ``carries-1``."""

    def problems(self, split: Split, *, seed: int) -> Sequence[Problem]:
        """All problems of a split, shuffled by ``seed``."""
        operands = range(1, OPERAND_MAX + 1)
        pairs = ((left, right) for left in operands for right in operands if (left, right) not in EXAMPLES)
        return split_of((_problem(left, right) for left, right in pairs), split, seed=seed)

    def score(self, problem: Problem, completion: str) -> Score:
        """1 for exactly the equation with the right sum, 0.1 for an equation that is wrong, else 0."""
        exact = completion == problem.answer
        shape = _EQUATION.fullmatch(completion) is not None
        verdict = "solved" if exact else f"expected {problem.answer!r}, got {completion[:60]!r}"
        return Score(
            reward=1.0 if exact else SHAPE_REWARD * shape,
            components={"exact": float(exact), "shape": float(shape)},
            log=verdict,
        )

    def demonstrations(self, *, seed: int, count: int) -> Sequence[Demonstration]:
        """The right answers of ``count`` training problems."""
        return right_answers(self.problems("train", seed=seed), count=count)


def _problem(left: int, right: int) -> Problem:
    messages: list[dict[str, str]] = []
    for upper, lower in EXAMPLES:
        messages.append({"role": "user", "content": f"What is {upper} + {lower}?"})
        messages.append({"role": "assistant", "content": _equation(upper, lower)})
    messages.append({"role": "user", "content": f"What is {left} + {right}?"})
    return Problem(
        prompt_id=f"{left}+{right}",
        prompt=msgspec.json.encode(messages).decode(),
        answer=_equation(left, right),
        bin=f"carries-{int(left % 10 + right % 10 >= 10)}",
    )


def _equation(left: int, right: int) -> str:
    return f"{left} + {right} = {left + right}"
