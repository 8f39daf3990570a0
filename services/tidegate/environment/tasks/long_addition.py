"""Addition on paper, one step a column: ``47+38=`` is answered ``7815;4308;085``.

A step holds a column's two digits, from the right, and their sum with the carry as two digits; then comes the sum, one
digit longer than the operands. So the prompt sets the length of the answer: 6 d + 1 characters for d digits, which are
drawn as lognormal(5, 0.7) and at most 40. Half of the answers have up to 31 characters and one in a hundred 151 or
more.
"""

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice, takewhile
from math import log

from tidegate.environment.tasks.port import Demonstration, Problem, Score, Split
from tidegate.environment.tasks.splits import right_answers, split_of

NUM_DRAWN = 12_000
DIGITS_MEDIAN = 5.0
DIGITS_LOG_SIGMA = 0.7
DIGITS_MAX = 40
# The problems themselves; never a run's seed, or one run's training problems would be another's held-out ones.
DRAW_SEED = 4738
BINS_UP_TO = (2, 5, 10, 20, DIGITS_MAX)
STEP_END = ";"
# What right steps are worth without the right answer: less than any right answer, more than nothing.
STEPS_WEIGHT = 0.2


class LongAddition:
    """The task. Its curriculum bin is the number of digits: ``digits-2`` for up to 2, to ``digits-40``."""

    def problems(self, split: Split, *, seed: int) -> Sequence[Problem]:
        """All problems of a split, shuffled by ``seed``; as many of a length as its share of the draws."""
        return split_of(_drawn(), split, seed=seed)

    def score(self, problem: Problem, completion: str) -> Score:
        """1 for exactly the steps and the sum, else 0.2 times the share of steps that are right before the first slip.

        Components: ``exact``, and ``steps``, that share.
        """
        wanted, given = problem.answer.split(STEP_END), completion.split(STEP_END)
        num_right = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(wanted, given, strict=False))
        )
        exact = completion == problem.answer
        steps = num_right / len(wanted)
        verdict = "solved" if exact else f"{num_right} of {len(wanted)} steps are right"
        return Score(
            reward=1.0 if exact else STEPS_WEIGHT * steps,
            components={"exact": float(exact), "steps": steps},
            log=verdict,
        )

    def demonstrations(self, *, seed: int, count: int) -> Sequence[Demonstration]:
        """The right answers of ``count`` training problems."""
        return right_answers(self.problems("train", seed=seed), count=count)


def worked_out(left: str, right: str) -> str:
    """The answer to two numbers of equally many digits: a step for each column from the right, then the sum."""
    steps: list[str] = []
    carry = 0
    for upper, lower in zip(reversed(left), reversed(right), strict=True):
        total = int(upper) + int(lower) + carry
        steps.append(f"{upper}{lower}{total:02d}")
        carry = total // 10
    answer = f"{int(left) + int(right):0{len(left) + 1}d}"
    return STEP_END.join([*steps, answer])


@lru_cache(maxsize=1)
def _drawn() -> tuple[Problem, ...]:
    """Every problem, kept for as long as the process lives: a session that names none draws one of them."""
    return tuple(islice(_draws(), NUM_DRAWN))


def _draws() -> Iterator[Problem]:
    rng = random.Random(DRAW_SEED)
    while True:
        num_digits = round(rng.lognormvariate(log(DIGITS_MEDIAN), DIGITS_LOG_SIGMA))
        if not 1 <= num_digits <= DIGITS_MAX:
            continue
        smallest, largest = 10 ** (num_digits - 1), 10**num_digits - 1
        left, right = (str(rng.randint(smallest, largest)) for _ in range(2))
        up_to = next(limit for limit in BINS_UP_TO if num_digits <= limit)
        yield Problem(
            prompt_id=f"{left}+{right}",
            prompt=f"{left}+{right}=",
            answer=worked_out(left, right),
            bin=f"digits-{up_to}",
        )
