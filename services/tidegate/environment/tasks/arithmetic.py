"""Two-digit addition, character by character: ``47+38=`` is answered ``085``.

Answers have three digits always, so that the length is no hint. A fifth of the problems, chosen by
digest and so the same in every process and run, is held out: no task and no demonstration ever uses it.
"""

import hashlib
import random
from collections.abc import Sequence

from tidegate.environment.tasks.port import Demonstration, Problem, Score, Split
from tidegate.environment.tasks.splits import right_answers

OPERAND_MIN = 10
OPERAND_MAX = 99
ANSWER_DIGITS = 3
HELDOUT_SHARE = 0.2


class Arithmetic:
    """The task. Its curriculum bin is the number of carries: ``carries-0`` to ``carries-2``."""

    def problems(self, split: Split, *, seed: int) -> Sequence[Problem]:
        """All problems of a split, shuffled by ``seed``."""
        everything = _problems_in_fixed_order()
        num_heldout = int(len(everything) * HELDOUT_SHARE)
        chosen = everything[:num_heldout] if split == "heldout" else everything[num_heldout:]
        random.Random(seed).shuffle(chosen)
        return chosen

    def score(self, problem: Problem, completion: str) -> Score:
        """1 for exactly the answer, else 0.

        The component ``digits`` is the share of digits in their place: for logs and plots; it is not rewarded.
        """
        solved = completion == problem.answer
        in_place = sum(given == right for given, right in zip(completion, problem.answer, strict=False))
        digits = in_place / len(problem.answer) if problem.answer else 0.0
        verdict = "solved" if solved else f"expected {problem.answer!r}, got {completion[:40]!r}"
        return Score(reward=float(solved), components={"exact": float(solved), "digits": digits}, log=verdict)

    def demonstrations(self, *, seed: int, count: int) -> Sequence[Demonstration]:
        """The right answers of ``count`` training problems, all different until every one was used."""
        return right_answers(self.problems("train", seed=seed), count=count)


def _problems_in_fixed_order() -> list[Problem]:
    operands = range(OPERAND_MIN, OPERAND_MAX + 1)
    problems = [_problem(left, right) for left in operands for right in operands]
    return sorted(problems, key=lambda problem: hashlib.sha256(problem.prompt_id.encode()).digest())


def _problem(left: int, right: int) -> Problem:
    carries = int(left % 10 + right % 10 >= 10) + int(left + right >= 100)
    return Problem(
        prompt_id=f"{left}+{right}",
        prompt=f"{left}+{right}=",
        answer=f"{left + right:0{ANSWER_DIGITS}d}",
        bin=f"carries-{carries}",
    )
