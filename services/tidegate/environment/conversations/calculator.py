"""A calculator in brackets: for ``12*(3+45)-7=`` the policy calls ``[3+45]``, reads ``48``, and ends with ``569``.

One call per turn, of whole numbers and one sign; any other text is the final answer. An expression of n signs takes n
calls and the answer, 2 to 6 turns, or fewer if the policy computes steps itself.
"""

import random
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice

from tidegate.environment.conversations.episodes import demonstrate, score_of_one_turn
from tidegate.environment.conversations.port import ConversationTurn, ToolUse
from tidegate.environment.conversations.tools import NO_TOOLS, TOOL_FAILED, Tools
from tidegate.environment.tasks.expressions import Evaluated, evaluate
from tidegate.environment.tasks.port import Demonstration, Problem, Score, Split
from tidegate.environment.tasks.splits import repeated, split_of

NUM_DRAWN = 10_000
DRAW_SEED = 569
SIGNS_MAX = 5
OPERAND_MAX = 50
VALUE_MAX = 9_999
# Twice what any problem needs: failed calls can be repeated, and every episode ends.
TURNS_MAX = 12
# Reward for all required calls with a wrong answer.
STEPS_WEIGHT = 0.2
NOT_A_CALL = "?"
_CALL = re.compile(r"\[([0-9]{1,6})([-+*])([0-9]{1,6})\]")


class Calculator:
    """The task. Its curriculum bin is the number of signs: ``signs-1`` to ``signs-5``."""

    @property
    def deterministic(self) -> bool:
        """True: the seed also draws the failures of the tool."""
        return True

    def problems(self, split: Split, *, seed: int) -> Sequence[Problem]:
        """All problems of a split, shuffled by ``seed``."""
        return split_of(_drawn(), split, seed=seed)

    def begin(self, problem: Problem, *, seed: int, tools: Tools) -> "CalculatorEpisode":
        """An episode about a problem."""
        return CalculatorEpisode(problem, seed=seed, tools=tools)

    def score(self, problem: Problem, completion: str) -> Score:
        """1 for the answer without any call."""
        return score_of_one_turn(self.begin(problem, seed=0, tools=NO_TOOLS), completion)

    def demonstrations(self, *, seed: int, count: int) -> Sequence[Demonstration]:
        """Whole episodes about ``count`` training problems: every step as a call, then the answer."""
        problems = repeated(self.problems("train", seed=seed), count=count)
        return [
            demonstrate(self.begin(problem, seed=0, tools=NO_TOOLS), reference_turns(problem))
            for problem in problems
        ]


class CalculatorEpisode:
    """The state of an episode: the calls answered so far."""

    def __init__(self, problem: Problem, *, seed: int, tools: Tools) -> None:
        self._problem = problem
        self._seed = seed
        self._conditions = tools.conditions
        self._steps = evaluate_prompt(problem.prompt).steps
        self._answered: set[str] = set()
        self._num_turns = 0

    @property
    def opening(self) -> str:
        """The expression and an equals sign."""
        return self._problem.prompt

    def reply(self, text: str) -> ConversationTurn:
        """The value of a call, ``error`` for one that failed, ``?`` for an invalid one; or the verdict."""
        self._num_turns += 1
        if not text.startswith("["):
            return ConversationTurn("", score=self._score(answer=text))
        use = self._called(text)
        last = self._num_turns >= TURNS_MAX
        return ConversationTurn(
            use.result,
            score=self._score(answer="") if last else None,
            truncated=last,
            tools=(use,),
            delay_s=self._conditions.delay_s(self._seed, self._num_turns),
        )

    def _called(self, text: str) -> ToolUse:
        call = _CALL.fullmatch(text)
        if call is None:
            return ToolUse("calculator", text, NOT_A_CALL)
        if self._conditions.fails(self._seed, self._num_turns):
            return ToolUse("calculator", text, TOOL_FAILED)
        asked = f"{int(call[1])}{call[2]}{int(call[3])}"
        self._answered.add(asked)
        return ToolUse("calculator", text, str(evaluate(asked).value))

    def _score(self, *, answer: str) -> Score:
        exact = answer == self._problem.answer
        steps = sum(step in self._answered for step in self._steps) / len(self._steps)
        verdict = "solved" if exact else f"expected {self._problem.answer!r}, got {answer[:40]!r}"
        return Score(
            reward=1.0 if exact else STEPS_WEIGHT * steps,
            components={"exact": float(exact), "steps": steps},
            log=verdict,
        )


def reference_turns(problem: Problem) -> list[str]:
    """Every step in brackets, then the answer."""
    return [*(f"[{step}]" for step in evaluate_prompt(problem.prompt).steps), problem.answer]


def evaluate_prompt(prompt: str) -> Evaluated:
    """The expression before the equals sign.

    Raises:
        RecordError: there is none.
    """
    return evaluate(prompt.removesuffix("="))


@lru_cache(maxsize=1)
def _drawn() -> tuple[Problem, ...]:
    """Every problem, cached for the process: a session that names none draws one of them."""
    return tuple(islice(_draws(), NUM_DRAWN))


def _draws() -> Iterator[Problem]:
    rng = random.Random(DRAW_SEED)
    while True:
        num_signs = rng.randint(1, SIGNS_MAX)
        text = _expression(num_signs, rng)
        result = evaluate(text)
        # Intermediate values must be valid arguments of a call: whole, not negative, and not too large.
        if all(_CALL.fullmatch(f"[{step}]") for step in result.steps) and 0 <= result.value <= VALUE_MAX:
            yield Problem(text, f"{text}=", str(result.value), f"signs-{num_signs}")


def _expression(num_signs: int, rng: random.Random) -> str:
    """A random expression of so many signs, with brackets where they change its value."""
    if num_signs == 0:
        return str(rng.randint(1, OPERAND_MAX))
    num_left = rng.randint(0, num_signs - 1)
    sign = rng.choice("+-*")
    left, right = _expression(num_left, rng), _expression(num_signs - 1 - num_left, rng)
    if sign == "*":
        left = _bracketed(left)
    return f"{left}{sign}{right if sign == '+' else _bracketed(right)}"


def _bracketed(text: str) -> str:
    return text if text.isdigit() else f"({text})"
