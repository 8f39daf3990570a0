"""The countdown game: reach a target with some of the numbers given, each at most once.

``make 22 from 3 5 7:`` is answered ``3*5+7``. Each problem is made from an expression over all of its numbers, so it
has a solution; any other that reaches the target is as good.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice

from tidegate.core.errors import RecordError
from tidegate.environment.tasks.expressions import evaluate
from tidegate.environment.tasks.port import Demonstration, Problem, Score, Split
from tidegate.environment.tasks.splits import right_answers, split_of

NUM_DRAWN = 12_000
NUMBERS_MIN = 2
NUMBERS_MAX = 5
OPERAND_MAX = 25
TARGET_MAX = 999
DRAW_SEED = 2207
# What a readable expression of the given numbers is worth when it misses the target.
VALID_REWARD = 0.1


class Countdown:
    """The task. Its curriculum bin is how many numbers there are: ``numbers-2`` to ``numbers-5``."""

    def problems(self, split: Split, *, seed: int) -> Sequence[Problem]:
        """All problems of a split, shuffled by ``seed``."""
        return split_of(_drawn(), split, seed=seed)

    def score(self, problem: Problem, completion: str) -> Score:
        """1 for an expression of the given numbers that is the target, 0.1 for one that is not, else 0."""
        wanted = evaluate(problem.answer)
        try:
            given = evaluate(completion)
        except RecordError as error:
            return _score(valid=False, exact=False, log=str(error))
        surplus = Counter(given.numbers) - Counter(wanted.numbers)
        if surplus:
            return _score(
                valid=False, exact=False, log=f"{next(iter(surplus))} is not among the numbers left to use"
            )
        exact = given.value == wanted.value
        return _score(
            valid=True, exact=exact, log="solved" if exact else f"it is {given.value}, not {wanted.value}"
        )

    def demonstrations(self, *, seed: int, count: int) -> Sequence[Demonstration]:
        """A solution for each of ``count`` training problems."""
        return right_answers(self.problems("train", seed=seed), count=count)


def _score(*, valid: bool, exact: bool, log: str) -> Score:
    reward = 1.0 if exact else VALID_REWARD * valid
    return Score(reward=reward, components={"exact": float(exact), "valid": float(valid)}, log=log)


@lru_cache(maxsize=1)
def _drawn() -> tuple[Problem, ...]:
    """Every problem, kept for as long as the process lives: a session that names none draws one of them."""
    return tuple(islice(_draws(), NUM_DRAWN))


def _draws() -> Iterator[Problem]:
    rng = random.Random(DRAW_SEED)
    while True:
        count = rng.randint(NUMBERS_MIN, NUMBERS_MAX)
        numbers = [rng.randint(1, OPERAND_MAX) for _ in range(count)]
        solution, target = _expression(numbers, rng)
        if not 1 <= target <= TARGET_MAX:
            continue
        shown = " ".join(str(number) for number in sorted(numbers))
        prompt = f"make {target} from {shown}:"
        yield Problem(prompt_id=prompt, prompt=prompt, answer=solution, bin=f"numbers-{count}")


def _expression(numbers: Sequence[int], rng: random.Random) -> tuple[str, int]:
    """A random expression over all of the numbers, as text and value; division only where it leaves no rest."""
    if len(numbers) == 1:
        return str(numbers[0]), numbers[0]
    cut = rng.randint(1, len(numbers) - 1)
    left, right = _expression(numbers[:cut], rng), _expression(numbers[cut:], rng)
    operators = ["+", "-", "*"]
    if right[1] != 0 and left[1] % right[1] == 0:
        operators.append("/")
    match operator := rng.choice(operators):
        case "+":
            value = left[1] + right[1]
        case "-":
            value = left[1] - right[1]
        case "*":
            value = left[1] * right[1]
        case _:
            value = left[1] // right[1]
    return f"{_bracketed(left[0])}{operator}{_bracketed(right[0])}", value


def _bracketed(text: str) -> str:
    return text if text.isdigit() else f"({text})"
